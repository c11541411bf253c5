"""Rows made by hand, valid unless told otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.bench.rows import RequestFacts, Row
from orchestrator.bench.validity import judge

GOOD_REQUEST = RequestFacts(
    prompt_id="p", asked_tokens=100, tokens=100, prompt_tokens=20, cached_tokens=0, status=200, error="",
    finish_reason="length", terminated=True, ttft_s=0.1, itl_s=0.009, e2e_s=1.0, verify_steps=25, correct_drafts=74,
    ids_sha="abc", loop_share=0.0,
)  # fmt: skip


def row(**changes: Any) -> Row:
    request = replace(GOOD_REQUEST, **{k: changes.pop(k) for k in list(changes) if hasattr(GOOD_REQUEST, k)})
    facts: dict[str, Any] = {
        "arm": "tree", "budget": 15, "concurrency": 1, "pair": 0, "block": 0, "requests": (request,), "wall_s": 1.0,
        "max_tokens": 100, "prompt_hashes": ("h",), "identity_before": "a", "identity_after": "a", "graphs": True,
        "other_graphs": True, "foreign_requests": 0, "live_load": 0.0, "client_delay_p99_s": 0.001, "lossless": True,
    }  # fmt: skip
    return Row(**(facts | changes))


def pair_rows(ratios: list[float], budget: int = 15, concurrency: int = 1, first: int = 0) -> list[Row]:
    """Judged pairs whose tree arm is `ratio` times as fast, in ABBA order."""
    rows = []
    for i, ratio in enumerate(ratios, start=first):
        common = {"budget": budget, "concurrency": concurrency, "pair": i, "prompt_hashes": (f"h{i}",)}
        rows.append(judge(row(arm="linear", block=i, wall_s=1.0, lossless=None, **common)))
        rows.append(judge(row(arm="tree", block=i + 1, wall_s=1.0 / ratio, **common)))
    return rows
