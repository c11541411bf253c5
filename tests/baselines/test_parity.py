"""The parity check finds every kind of broken engine and explains what near-ties explain."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from baselines.__main__ import main
from baselines.baseline import AnchorData, Baseline, PromptRecord
from baselines.parity import Bounds, check_counts, check_trace, load_trace

NEW_TOKENS = 20


def make() -> Baseline:
    """Two prompts of 20 tokens; the tree of 16 accepts 4, 3, 4, 3, ... tokens, the chain 2."""
    anchors = AnchorData(
        entered=[[1, 2, 9] if j % 2 == 0 else [1, 12, 40] for j in range(NEW_TOKENS)],
        scores=[[-0.5, -1.0, -2.0] if j % 2 == 0 else [-0.5, -2.9996, -4.0] for j in range(NEW_TOKENS)],
        chain=[2] * NEW_TOKENS,
        chain_slack=[0.4] * NEW_TOKENS,
        cutoffs={"16": [-3.0] * NEW_TOKENS},
    )
    records = [
        PromptRecord(
            name,
            "code",
            [5, 6],
            list(range(100, 100 + NEW_TOKENS)),
            [2.0] * NEW_TOKENS,
            {m: anchors.steps(m, NEW_TOKENS) for m in ("chain", "16")},
            copy.deepcopy(anchors),
        )
        for name in ("p1", "p2")
    ]
    names = {"name": "x", "sha256": "ab" * 32}
    return Baseline(names, names, names, {"k": 32}, 16, NEW_TOKENS, [16], records)


def trace_of(baseline: Baseline, mode: str = "16") -> dict[str, list[dict[str, Any]]]:
    """What a right engine writes."""
    return {
        r.id: [{"rid": r.id, "step": i, "accepted": n} for i, n in enumerate(r.accept[mode])] for r in baseline.prompts
    }


@pytest.mark.parametrize(
    ("found", "missed", "edge", "gap"),
    [
        (5, -3.1, 0.5, -0.1),  # nearly scored enough
        (5, -2.0, -0.2, -0.2),  # scored enough, but was nearly not a candidate
        (5, None, 0.5, None),
        (3, -9.0, 0.05, 0.05),  # lost by no longer being a candidate
    ],
)
def test_a_node_at_the_edge_of_the_tree_or_of_its_candidates_has_its_gap(
    found: int, missed: float | None, edge: float, gap: float | None
) -> None:
    """The tree of 16 accepts 4 tokens at the first step: three nodes, and the fourth is in no tree."""
    baseline = make()
    for record in baseline.prompts:
        assert record.anchors is not None
        record.anchors.missed = [missed] * NEW_TOKENS
        record.anchors.edges = [[9.0, 9.0, edge if found < 4 else 9.0, edge]] * NEW_TOKENS
    trace = {"p1": [{"rid": "p1", "step": 0, "accepted": found}]}
    difference = check_trace(baseline, trace, "16").differences[0]
    assert difference.depth == min(found, 4)
    assert difference.draft_gap == gap
    assert not difference.explained
    assert check_trace(baseline, trace, "16", Bounds(0.0, 0.25)).differences[0].explained == (gap is not None)


def test_an_engine_that_accepts_the_same_is_equal() -> None:
    baseline = make()
    report = check_trace(baseline, trace_of(baseline), "16", outputs={r.id: r.greedy_ids for r in baseline.prompts})
    assert report.ok
    assert not report.differences
    assert report.steps == sum(len(r.accept["16"]) for r in baseline.prompts)
    assert report.engine_tokens_per_step == report.baseline_tokens_per_step
    assert report.text().startswith("equal: 2 prompts")


def test_a_linear_engine_whose_text_leaves_the_targets_is_judged_by_that_token() -> None:
    baseline = make()
    counts = {record.id: len(record.accept["chain"]) for record in baseline.prompts}
    right = {record.id: record.greedy_ids for record in baseline.prompts}
    assert not check_counts(baseline, counts, outputs=right).differences
    texts = right | {"p2": [*right["p2"][:7], 9, *right["p2"][8:]]}
    report = check_counts(baseline, counts | {"p2": 3}, outputs=texts)
    assert not report.ok
    assert report.faults[0].message == (
        "prompt p2: generated token 7 is 9 where the target's own is 107 (target margin 2.0)"
    )
    baseline.prompts[1].margins[7] = 0.0005
    assert check_counts(baseline, counts | {"p2": 3}, outputs=texts).ok


def test_lost_acceptance_names_prompt_step_and_node() -> None:
    baseline = make()
    trace = trace_of(baseline)
    trace["p2"][1]["accepted"] -= 1
    report = check_trace(baseline, trace, "16")
    assert not report.ok
    fault = report.faults[0]
    assert (fault.prompt, fault.step, fault.anchor, fault.expected, fault.found) == ("p2", 1, 4, 4, 3)
    assert (fault.depth, fault.token) == (3, 107)
    assert "prompt p2, step 1" in fault.message
    assert "token 107" in fault.message


def test_an_off_by_one_everywhere_is_a_fault_on_the_first_step() -> None:
    baseline = make()
    trace = {
        rid: [dict(s, accepted=max(1, s["accepted"] - 1)) for s in steps] for rid, steps in trace_of(baseline).items()
    }
    assert [f.step for f in check_trace(baseline, trace, "16").faults] == [0, 0]


def test_acceptance_that_no_tree_holds_is_a_fault() -> None:
    baseline = make()
    trace = trace_of(baseline)
    trace["p1"][0]["accepted"] = 6
    fault = check_trace(baseline, trace, "16").faults[0]
    assert fault.found == 6
    assert "no tree of the baseline holds it" in fault.message


def test_a_near_tie_of_the_target_explains() -> None:
    baseline = make()
    baseline.prompts[0].margins[3] = 0.0004
    trace = trace_of(baseline)
    trace["p1"][0]["accepted"] = 3
    report = check_trace(baseline, trace, "16")
    assert report.ok
    assert report.differences[0].explained
    assert not check_trace(baseline, trace, "16", Bounds(target=1e-4)).ok


def test_a_near_tie_at_the_edge_of_the_tree_explains_and_comparison_goes_on() -> None:
    baseline = make()
    trace = trace_of(baseline)
    p1 = baseline.prompts[0]
    assert p1.anchors is not None
    p1.anchors.entered[1][1] = 17
    trace["p1"] = [{"rid": "p1", "step": i, "accepted": n} for i, n in enumerate([4, 4, 4, 4, 4])]
    assert check_trace(baseline, trace, "16").ok
    p1.anchors.entered[4] = [1, 2, 17]
    p1.anchors.scores[4] = [-0.5, -1.0, -3.0005]
    report = check_trace(baseline, trace, "16")
    assert report.ok
    assert [d.step for d in report.differences] == [1]
    assert report.steps > 5


def test_another_text_is_a_fault_unless_the_margin_is_a_tie() -> None:
    baseline = make()
    outputs = {"p1": [*range(100, 107), 0, *range(108, 120)], "p2": list(range(100, 120))}
    report = check_trace(baseline, trace_of(baseline), "16", outputs=outputs)
    assert [(f.step, f.anchor, f.depth) for f in report.faults] == [(1, 4, 2)]
    assert "prompt p1, step 1 (node at depth 2, whose prediction it is)" in report.faults[0].message
    assert "generated token 7 is 0 where the target's own is 107" in report.faults[0].message
    baseline.prompts[0].margins[7] = 0.0
    assert check_trace(baseline, trace_of(baseline), "16", outputs=outputs).ok


def test_a_trace_that_ends_early_is_a_fault() -> None:
    baseline = make()
    trace = trace_of(baseline)
    trace["p1"] = trace["p1"][:2]
    assert "ends after step 1" in check_trace(baseline, trace, "16").faults[0].message


def test_an_engine_that_was_asked_for_less_is_compared_that_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = make()
    short = baseline.shortened(9)
    assert short.new_tokens == 9
    assert all(sum(steps) >= 8 > sum(steps[:-1]) for r in short.prompts for steps in r.accept.values())
    for record in baseline.prompts:
        record.anchors = None
    assert [r.accept for r in baseline.shortened(9).prompts] == [r.accept for r in short.prompts]
    assert baseline.shortened(20) is baseline
    make().save(tmp_path / "b.json")
    lines = [json.dumps(step) for steps in trace_of(short).values() for step in steps]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    command = ["check", str(tmp_path / "b.json"), "--mode", "16", "--trace", str(tmp_path / "t.jsonl")]
    assert main(command) == 1
    assert "the trace ends after step" in capsys.readouterr().out
    assert main([*command, "--new-tokens", "9"]) == 0


def test_request_ids_are_mapped_to_prompts() -> None:
    baseline = make()
    trace = {f"r-{rid}": steps for rid, steps in trace_of(baseline).items()}
    assert check_trace(baseline, trace, "16", rids={"r-p1": "p1", "r-p2": "p2"}).ok


def test_counts_and_histograms() -> None:
    baseline = make()
    steps = len(baseline.prompts[0].accept["chain"])
    assert check_counts(baseline, {"p1": steps, "p2": {"verify_ct": steps, "histogram": [0, steps]}}).ok
    report = check_counts(baseline, {"p1": steps + 3})
    assert not report.ok
    assert f"prompt p1: verify count {steps + 3}, baseline {steps}" in report.faults[0].message
    assert not check_counts(baseline, {"p1": {"verify_ct": steps, "histogram": [3, steps - 3]}}).ok
    for record in baseline.prompts:
        assert record.anchors is not None
        record.anchors.chain_slack[4] = 0.0
    assert check_counts(baseline, {"p1": steps + 1}).ok


def test_the_command_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = make()
    baseline.save(tmp_path / "b.json")
    trace = trace_of(baseline)
    lines = [json.dumps(step) for steps in trace.values() for step in steps]
    (tmp_path / "t.jsonl").write_text("\n".join([*lines, '{"rid": "p1", "st']))
    assert load_trace(tmp_path / "t.jsonl") == trace
    command = ["check", str(tmp_path / "b.json"), "--mode", "16", "--trace", str(tmp_path / "t.jsonl")]
    assert main(command) == 0
    trace["p1"][2]["accepted"] = 1
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(s) for steps in trace.values() for s in steps))
    capsys.readouterr()
    assert main([*command, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert "prompt p1, step 2" in document["error"]
