"""The decision table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.bench.rows import Row
from orchestrator.bench.summary import Standing, hopeless, pairs_of, summarise_arm
from orchestrator.bench.validity import judge
from orchestrator.bench.verdict import Decision, Verdict, decide
from tests.bench.rowkit import pair_rows

MARGIN = 0.02
SPREAD = [0.99, 1.0, 1.01, 1.0, 0.98, 1.02, 1.0, 0.99, 1.01, 1.0]


def around(ratio: float, n: int = 10) -> list[float]:
    return [ratio * SPREAD[i % 10] for i in range(n)]


def verdict(*groups: list[Row]) -> Verdict:
    arms = [summarise_arm(pairs_of(rows), MARGIN, len(groups)) for rows in groups]
    return decide(arms, MARGIN)


@pytest.mark.parametrize(
    ("ratios", "decision", "word"),
    [
        (around(1.30), Decision.ADOPT, "lies above 1.020"),
        (around(0.70), Decision.KEEP_LINEAR, "no budget gains"),
        (around(1.00), Decision.KEEP_LINEAR, "no budget gains"),
        (around(1.02), Decision.INCONCLUSIVE, "holds 1.020"),
        (around(1.30, 3), Decision.INCONCLUSIVE, "only 3 of 10 valid pairs"),
        (around(0.50, 3), Decision.INCONCLUSIVE, "only 3 of 10 valid pairs"),
        ([1.3, 0.8] * 5, Decision.INCONCLUSIVE, "pairs would decide"),
        (around(0.50, 6), Decision.KEEP_LINEAR, "no budget gains"),
    ],
)
def test_one_budget(ratios: list[float], decision: Decision, word: str) -> None:
    result = verdict(pair_rows(ratios))
    assert result.decision is decision
    assert word in result.reason
    assert result.n == len(ratios)
    assert result.budget == 15


def test_the_fastest_proven_budget_is_taken() -> None:
    result = verdict(pair_rows(around(1.2), 15), pair_rows(around(1.4), 32), pair_rows(around(0.6), 64))
    assert (result.decision, result.budget) == (Decision.ADOPT, 32)
    assert result.ratio == pytest.approx(1.4, rel=0.01)
    assert result.holds_for == (1,)
    assert not result.conditional


def test_an_open_budget_keeps_the_question_open_when_none_is_proven() -> None:
    result = verdict(pair_rows(around(0.6), 15), pair_rows(around(1.1, 4), 32))
    assert (result.decision, result.budget) == (Decision.INCONCLUSIVE, 32)
    assert result.pairs_needed == 10


def test_more_budgets_widen_the_interval_that_decides() -> None:
    ratios = [1.0, 1.03, 1.2, 1.05, 1.03, 1.04, 1.05, 1.021, 1.03, 1.06]
    alone = summarise_arm(pairs_of(pair_rows(ratios)), MARGIN, 1)
    among = summarise_arm(pairs_of(pair_rows(ratios)), MARGIN, 9)
    assert alone.ci95 == among.ci95
    assert alone.ci_decision is not None
    assert among.ci_decision is not None
    assert among.ci_decision[0] < alone.ci_decision[0]
    assert alone.standing is Standing.BETTER
    assert among.standing is Standing.OPEN


def test_a_clear_interval_still_needs_the_sign_test() -> None:
    assert (
        "above 1.020 in only 9 of 10 pairs" in summarise_arm(pairs_of(pair_rows([1.2] * 9 + [1.0])), MARGIN, 9).reason
    )
    assert summarise_arm(pairs_of(pair_rows([1.2] * 9 + [1.0])), MARGIN, 1).standing is Standing.BETTER


def test_adopting_at_some_loads_is_conditional() -> None:
    result = verdict(pair_rows(around(1.3), concurrency=1), pair_rows(around(0.8), concurrency=16))
    assert (result.decision, result.conditional, result.holds_for) == (Decision.ADOPT, True, (1,))
    assert result.widths == {1: 15, 16: 0}
    assert "16: keep linear" in result.reason


def test_invalid_pairs_never_count() -> None:
    rows = pair_rows(around(1.3)) + [judge(replace(r, identity_after="new")) for r in pair_rows([9.0] * 5, first=100)]
    arm = summarise_arm(pairs_of(rows), MARGIN, 1)
    assert (arm.n, arm.invalid_pairs) == (10, 5)
    assert arm.ratio == pytest.approx(1.3, rel=0.01)
    assert arm.findings == {"server-restarted": 10}


def test_nothing_valid_is_invalid() -> None:
    rows = [judge(replace(r, lossless=False)) for r in pair_rows(around(1.3))]
    result = verdict(rows)
    assert (result.decision, result.budget, result.n) == (Decision.INVALID, None, 0)
    assert decide([], MARGIN).decision is Decision.INVALID


def test_too_few_prompts_or_blocks_are_no_proof() -> None:
    same = [replace(r, prompt_hashes=("one",)) for r in pair_rows(around(1.3))]
    small = summarise_arm(pairs_of(same), MARGIN, 1)
    assert "prompt set too small" in small.reason
    assert small.findings == {"prompt-set-too-small": 1}
    lumped = [replace(r, block=int(r.arm == "tree")) for r in pair_rows(around(1.3))]
    assert "2 of 4 blocks" in summarise_arm(pairs_of(lumped), MARGIN, 1).reason


def test_a_shared_linear_row_serves_every_budget() -> None:
    rows = pair_rows([1.5], 15) + pair_rows([1.2], 32)
    shared = [replace(r, budget=0) for r in rows[:1]] + [r for r in rows if r.arm == "tree"]
    assert [(p.tree.budget, round(p.ratio, 6)) for p in pairs_of(shared)] == [(15, 1.5), (32, 1.2)]


def test_hopeless_needs_six_clear_losses() -> None:
    assert not hopeless(pairs_of(pair_rows([0.5] * 5)))
    assert hopeless(pairs_of(pair_rows([0.5] * 6)))
    assert not hopeless(pairs_of(pair_rows([0.5] * 5 + [1.1])))


def test_figures_of_an_arm() -> None:
    arm = summarise_arm(pairs_of(pair_rows(around(1.25))), MARGIN, 1)
    assert arm.linear_tok_s == 100.0
    assert arm.tree_tok_s == pytest.approx(125.0)
    assert arm.tree_tokens_per_step == pytest.approx(99 / 25)
    assert arm.tree_tokens_per_step_ci95 == pytest.approx((99 / 25, 99 / 25))
    assert arm.linear_ms_per_step == pytest.approx(0.009 * 99 / 25 * 1e3)
    assert arm.to_json()["standing"] == "better"
