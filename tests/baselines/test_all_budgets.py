"""Oracle and live engine on both pairs for the chain and every budget; minutes long, so only with ORCHESTRATE_FULL=1.

`-s` shows the table: tokens per step of oracle and engine, steps compared, and every difference with its margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from baselines.baseline import Baseline
from baselines.parity import ParityReport, check_counts, check_trace, load_trace
from baselines.prompts import Prompt, load_prompts
from baselines.run import Request, make_baseline
from harness import Engine, Pair, close_current
from pairs import MODELS, PAIRS

BUDGETS = (15, 16, 22, 32, 64, 128, 256)
NEW_TOKENS = 48
SETS = ("code", "chat", "math", "json", "verbatim", "multilingual")


@pytest.fixture(autouse=True)
def closed_engine() -> Iterator[None]:
    yield
    close_current()


def prompts() -> list[Prompt]:
    """One prompt of each kind."""
    return [load_prompts(name)[0] for name in SETS]


@cache
def baseline_of(pair: str) -> Baseline:
    request = Request(MODELS / pair / "target", MODELS / pair / "draft", BUDGETS, NEW_TOKENS)
    return make_baseline(request, prompts(), say=lambda _: None)


def live(pair: str, mode: str, trace: Path) -> tuple[ParityReport, bool]:
    """Serve every prompt alone, as the deploy graph does; the comparison, and whether all texts are the target's own."""
    baseline = baseline_of(pair)
    algorithm, nodes = ("DFLASH", None) if mode == "chain" else ("DDTREE", int(mode))
    env = {} if mode == "chain" else {"SGLANG_DDTREE_TRACE": str(trace)}
    engine = Engine.start(Pair.find(pair), algorithm, nodes, env)
    served = {}
    for record in baseline.prompts:
        request = engine.add(record.prompt_ids, NEW_TOKENS)
        engine.run([request])
        engine.settle()
        served[request.rid] = (record, request)
    same_text = all(list(r.output_ids)[:NEW_TOKENS] == record.greedy_ids for record, r in served.values())
    if mode == "chain":
        return check_counts(baseline, {record.id: r.spec_verify_ct for record, r in served.values()}), same_text
    outputs = {rid: list(r.output_ids)[:NEW_TOKENS] for rid, (_, r) in served.items()}
    rids = {rid: record.id for rid, (record, _) in served.items()}
    return check_trace(baseline, load_trace(trace), mode, outputs=outputs, rids=rids), same_text


@pytest.mark.parametrize("mode", ["chain", *map(str, BUDGETS)])
@pytest.mark.parametrize("pair", PAIRS)
def test_oracle_and_engine_agree_exactly(pair: str, mode: str, tmp_path: Path) -> None:
    report, same_text = live(pair, mode, tmp_path / "trace.jsonl")
    print(
        f"\n{pair:<12} {mode:>5}  oracle {report.baseline_tokens_per_step:.4f}  engine {report.engine_tokens_per_step:.4f}  "
        f"{report.prompts} prompts, {report.steps} steps, {len(report.differences)} differences"
    )
    for difference in report.differences:
        print(f"  {difference.message}")
    assert report.prompts == len(SETS)
    assert same_text
    assert report.ok, report.text()
    assert not report.differences
