"""The live engine against the offline baseline, step by step; and deliberately broken engines, which must fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from baselines.baseline import Baseline
from baselines.parity import ParityReport, check_counts, check_trace, load_trace
from baselines.prompts import load_prompts
from baselines.run import Request, make_baseline
from harness import Engine, Pair, close_current
from pairs import MODELS, PAIRS
from sglang_ddtree import ops
from sglang_ddtree.verify_input import DDTreeVerifyInput

NEW_TOKENS = 40
BUDGETS = (15, 64)


@pytest.fixture(scope="module", params=PAIRS)
def baseline(request: pytest.FixtureRequest) -> Baseline:
    return baseline_of(request.param)


def baseline_of(name: str) -> Baseline:
    request = Request(MODELS / name / "target", MODELS / name / "draft", BUDGETS, NEW_TOKENS)
    return make_baseline(request, load_prompts("code")[:4], say=lambda _: None)


@pytest.fixture(autouse=True)
def closed_engine() -> Iterator[None]:
    yield
    close_current()


def served(engine: Engine, baseline: Baseline, trace: Path, mode: str) -> ParityReport:
    """Serve the baseline's prompts as one batch and compare."""
    requests = [engine.add(record.prompt_ids, NEW_TOKENS) for record in baseline.prompts]
    engine.run(requests)
    engine.settle()
    rids = {r.rid: record.id for r, record in zip(requests, baseline.prompts, strict=True)}
    if mode == "chain":
        return check_counts(baseline, {rids[r.rid]: r.spec_verify_ct for r in requests})
    outputs = {r.rid: list(r.output_ids)[:NEW_TOKENS] for r in requests}
    return check_trace(baseline, load_trace(trace), mode, outputs=outputs, rids=rids)


@pytest.mark.parametrize("mode", ["chain", *map(str, BUDGETS)])
def test_the_engine_accepts_what_the_baseline_says(baseline: Baseline, mode: str, tmp_path: Path) -> None:
    pair, trace = Pair.find(baseline.target["name"].split("/")[0]), tmp_path / "trace.jsonl"
    if mode == "chain":
        engine = Engine.start(pair, "DFLASH")
    else:
        engine = Engine.start(pair, "DDTREE", int(mode), {"SGLANG_DDTREE_TRACE": str(trace)})
    report = served(engine, baseline, trace, mode)
    assert report.ok, report.text()
    assert not report.differences
    assert report.engine_tokens_per_step == report.baseline_tokens_per_step > 1.5


def wrong_rope_depth(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """Rows take the position of their number instead of their depth."""
    original = DDTreeVerifyInput.from_tables.__func__

    def from_tables(cls: type, tables: Any, prefix: torch.Tensor) -> Any:
        verify = original(cls, tables, prefix)
        verify.positions = (prefix[:, None] + torch.arange(tables.width)).reshape(-1)
        return verify

    patch.setattr(DDTreeVerifyInput, "from_tables", classmethod(from_tables))


def stale_hybrid_state(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    state = engine.worker.state_free
    patch.setattr(state, "commit", lambda *args: state.records.clear())


def compaction_off_by_one(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """Accepted rows are taken from one row further on."""
    original = ops.compact_kv

    def compact_kv(buffers: Any, slots: torch.Tensor, path: torch.Tensor, *rest: Any) -> Any:
        shifted = path.clone()
        shifted[:, 1:] = (path[:, 1:] + 1).clamp(max=slots.shape[-1] - 1)
        return original(buffers, slots, shifted, *rest)

    patch.setattr(ops, "compact_kv", compact_kv)


def slot_zero_masked(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """No node sees the root's row."""
    original = ops.tree_mask

    def tree_mask(tables: Any) -> torch.Tensor:
        mask = original(tables).clone()
        mask[:, 1:, 0] = False
        return mask

    patch.setattr(ops, "tree_mask", tree_mask)


Break = Callable[[Engine, pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("tiny-dense", wrong_rope_depth),
        ("tiny-hybrid", stale_hybrid_state),
        ("tiny-dense", compaction_off_by_one),
        ("tiny-dense", slot_zero_masked),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_engine_falls_with_prompt_and_step(
    name: str, broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.jsonl"
    engine = Engine.start(Pair.find(name), "DDTREE", 64, {"SGLANG_DDTREE_TRACE": str(trace)})
    broken(engine, monkeypatch)
    report = served(engine, baseline_of(name), trace, "64")
    assert not report.ok
    assert {fault.prompt for fault in report.faults} <= {p.id for p in load_prompts("code")}
    assert "prompt code-" in report.faults[0].message
