"""The names under which SGLang reports speculation, by version, in one table; and the figures made of them.

Read from the wheels of each version: `TokenizerManager._calculate_spec_decoding_metrics` for `meta_info`,
`observability/metrics_collector.py` for Prometheus. The gauges and `avg_spec_accept_length` of the server's
info cover the server's whole life, so this project never uses them: it takes counters, before and after.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.openai.metrics_text import by_label
from orchestrator.openai.records import whole_number


@dataclass(frozen=True)
class SpecNames:
    """Key names of one SGLang version; where several are listed, the first that is present counts."""

    verify_count: tuple[str, ...] = ("spec_verify_ct",)
    correct_drafts: tuple[str, ...] = ("spec_num_correct_drafts",)
    proposed_drafts: tuple[str, ...] = ("spec_num_proposed_drafts",)
    reported_accept_length: tuple[str, ...] = ("spec_accept_length",)
    histogram: tuple[str, ...] = ("spec_correct_drafts_histogram",)
    # Prometheus: counters over the server's life, to be used as differences.
    counter_verify: str = "sglang:spec_verify_calls_total"
    counter_tokens: str = "sglang:generation_tokens_total"
    counter_requests: str = "sglang:num_requests_total"
    counter_graph_passes: str = "sglang:cuda_graph_passes_total"
    gauge_running: str = "sglang:num_running_reqs"
    gauge_queued: str = "sglang:num_queue_reqs"
    # Published by this project's plugin; absent from a plain server. The mean covers the server's life and
    # the sum of the hits over all depths is the number of steps, so differences can be made of both.
    mean_chain_length: str = "ddtree_accept_length_chain"
    steps_by_depth: str = "ddtree_depth_hits"
    stage_seconds: str = "ddtree_step_seconds"


_WITH_ALIASES = SpecNames(
    correct_drafts=("spec_num_correct_drafts", "spec_accepted_drafts"),
    proposed_drafts=("spec_num_proposed_drafts", "spec_proposed_drafts"),
    histogram=("spec_correct_drafts_histogram", "spec_accept_histogram"),
)

TABLE: dict[tuple[int, int, int], SpecNames] = {
    (0, 5, 16): _WITH_ALIASES,
    (0, 5, 20): _WITH_ALIASES,
    (0, 5, 23): SpecNames(),
}


def parse_version(version: str) -> tuple[int, int, int]:
    """`0.5.20.post1` -> (0, 5, 20); a part that is no number counts as 0."""
    starts = [re.match(r"\d{0,9}", part, re.ASCII) for part in version.split(".")[:3]]
    parts = [int(start.group() or 0) for start in starts if start]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return major, minor, patch


def names_for(version: str | None) -> SpecNames:
    """The table row of the newest listed version that is not newer; the oldest row for anything older."""
    if not version:
        return _WITH_ALIASES
    wanted = parse_version(version)
    fitting = [known for known in TABLE if known <= wanted]
    return TABLE[max(fitting)] if fitting else TABLE[min(TABLE)]


def _first(meta: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((meta[key] for key in keys if meta.get(key) is not None), None)


def _whole(meta: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return whole_number(_first(meta, keys))


def accepted_histogram(meta: Mapping[str, Any], names: SpecNames) -> tuple[int, ...]:
    """How many verify passes of one request confirmed 0, 1, 2, ... drafts; empty when the server does not say."""
    found = _first(meta, names.histogram)
    counts = [whole_number(n) for n in found] if isinstance(found, list | tuple) else []
    return tuple(n for n in counts if n is not None) if None not in counts else ()


@dataclass(frozen=True)
class SpecCounts:
    """Speculation of one request, or the sum over several.

    verify_steps: target forward passes that verified drafts. decoded: tokens that those passes delivered
    (the first token comes from the prefill and is not among them). correct_drafts: drafts accepted.
    """

    verify_steps: int = 0
    decoded: int = 0
    correct_drafts: int | None = None

    @property
    def tokens_per_step(self) -> float | None:
        """Delivered tokens per verify step; the figure that verdicts and gates use."""
        return self.decoded / self.verify_steps if self.verify_steps else None

    @property
    def accept_length(self) -> float | None:
        """1 + accepted drafts per step; above tokens_per_step where max_tokens cut a step short."""
        if not self.verify_steps or self.correct_drafts is None:
            return None
        return 1 + self.correct_drafts / self.verify_steps

    @staticmethod
    def of_request(meta: Mapping[str, Any], tokens: int, names: SpecNames) -> SpecCounts:
        """From one request's `meta_info` and its number of output tokens."""
        return SpecCounts(
            verify_steps=_whole(meta, names.verify_count) or 0,
            decoded=max(0, tokens - 1),
            correct_drafts=_whole(meta, names.correct_drafts),
        )

    @staticmethod
    def total(parts: list[SpecCounts]) -> SpecCounts:
        """Sum; a part without a count of correct drafts makes that sum unknown."""
        correct = [p.correct_drafts for p in parts if p.correct_drafts is not None]
        return SpecCounts(
            verify_steps=sum(p.verify_steps for p in parts),
            decoded=sum(p.decoded for p in parts),
            correct_drafts=sum(correct) if len(correct) == len(parts) and parts else None,
        )

    @staticmethod
    def between(before: Mapping[str, float], after: Mapping[str, float], names: SpecNames) -> SpecCounts | None:
        """From two readings of the metrics endpoint; None when it has no such counters."""
        if names.counter_verify not in after:
            return None

        def grown(key: str) -> int:
            return round(after.get(key, 0.0) - before.get(key, 0.0))

        return SpecCounts(
            verify_steps=grown(names.counter_verify),
            decoded=max(0, grown(names.counter_tokens) - grown(names.counter_requests)),
        )


def chain_length_between(before: Mapping[str, float], after: Mapping[str, float], names: SpecNames) -> float | None:
    """Tokens per step that the tree's spine alone would have delivered between two readings; None if not told."""
    if names.mean_chain_length not in after:
        return None
    steps = [reading.get(names.steps_by_depth, 0.0) for reading in (before, after)]
    tokens = [r.get(names.mean_chain_length, 0.0) * n for r, n in zip((before, after), steps, strict=True)]
    return (tokens[1] - tokens[0]) / (steps[1] - steps[0]) if steps[1] > steps[0] else None


def stage_ms_between(before: str, after: str, names: SpecNames) -> dict[str, float]:
    """Mean milliseconds per step of each stage between two texts of the metrics endpoint; {} if not told."""
    readings = {
        part: [by_label(text, f"{names.stage_seconds}_{part}", "stage") for text in (before, after)]
        for part in ("sum", "count")
    }
    means = {}
    for stage, seconds in readings["sum"][1].items():
        steps = readings["count"][1].get(stage, 0.0) - readings["count"][0].get(stage, 0.0)
        if steps > 0:
            means[stage] = (seconds - readings["sum"][0].get(stage, 0.0)) / steps * 1e3
    return means
