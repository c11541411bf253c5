"""The decision table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.bench.rows import HostSample, RequestFacts, Row
from orchestrator.bench.summary import OWN_FAULTS, Standing, hopeless, pairs_of, summarise_arm
from orchestrator.bench.validity import RULES, judge
from orchestrator.bench.verdict import Decision, Verdict, decide
from tests.bench.rowkit import pair_rows

MARGIN = 0.02
SPREAD = [0.99, 1.0, 1.01, 1.0, 0.98, 1.02, 1.0, 0.99, 1.01, 1.0]


def around(ratio: float, n: int = 10) -> list[float]:
    return [ratio * SPREAD[i % 10] for i in range(n)]


def verdict(*groups: list[Row], asked: Sequence[int] = (), failed: Mapping[int, str] | None = None) -> Verdict:
    arms = [summarise_arm(pairs_of(rows), MARGIN, len(groups)) for rows in groups]
    return decide(arms, MARGIN, asked, failed)


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


def test_a_load_without_an_arm_is_shown_by_nothing() -> None:
    result = verdict(pair_rows(around(1.3)), asked=(1, 8))
    assert (result.decision, result.conditional, result.holds_for) == (Decision.ADOPT, True, (1,))
    assert result.widths == {1: 15, 8: 0}
    assert "8: not measured" in result.reason
    assert [(v.concurrency, v.decision) for v in result.loads] == [(1, Decision.ADOPT), (8, Decision.INVALID)]


@pytest.mark.parametrize("asked", [(1,), (1, 8)])
def test_a_budget_whose_server_died_is_adopted_at_no_load(asked: Sequence[int]) -> None:
    result = verdict(pair_rows(around(1.3), 64), asked=asked, failed={64: "the tree server is gone."})
    assert (result.decision, result.budget, result.holds_for) == (Decision.INCONCLUSIVE, 64, ())
    assert (result.conditional, result.pairs_needed) == (False, None)
    assert "but its measurement ended with an error (the tree server is gone)" in result.reason
    assert "more pairs" not in result.reason


def test_another_budget_is_adopted_beside_one_whose_server_died() -> None:
    groups = [pair_rows(around(1.2), 15, load) for load in (1, 8)]
    result = verdict(*groups, pair_rows(around(1.4), 64), asked=(1, 8), failed={64: "gone"})
    assert (result.decision, result.budget, result.holds_for) == (Decision.ADOPT, 15, (1, 8))
    assert not result.conditional
    assert "; budget 64 is left out: its measurement ended with an error (gone)" in result.reason


def test_a_budget_that_pays_at_every_load_goes_before_a_faster_one_that_does_not() -> None:
    slow_under_load = [pair_rows(around(1.4), 64, 1), pair_rows(around(0.7), 64, 8)]
    result = verdict(*slow_under_load, pair_rows(around(1.2), 15, 1), pair_rows(around(1.2), 15, 8))
    assert (result.budget, result.conditional, result.holds_for) == (15, False, (1, 8))
    assert result.widths == {1: 64, 8: 15}


def test_no_single_budget_for_all_loads_is_conditional() -> None:
    groups = [pair_rows(around(r), b, c) for r, b, c in ((1.4, 64, 1), (0.7, 64, 8), (0.9, 15, 1), (1.2, 15, 8))]
    result = verdict(*groups)
    assert (result.budget, result.conditional, result.holds_for) == (64, True, (1,))


def spoilt(rows: list[Row], pairs: int, arm: str = "tree", **changes: Any) -> list[Row]:
    """The same rows with the first pairs' rows of one arm changed, and judged again."""
    request = {k: changes.pop(k) for k in list(changes) if k in RequestFacts.__dataclass_fields__}

    def spoil(one: Row) -> Row:
        return judge(replace(one, requests=tuple(replace(r, **request) for r in one.requests), **changes))

    return [spoil(one) if one.arm == arm and one.pair < pairs else one for one in rows]


FAULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("not-lossless", {"lossless": False}),
    ("request-failed", {"status": 500, "error": "x"}),
    ("output-short", {"tokens": 10}),
    ("no-speculation", {"verify_steps": 0}),
)


@pytest.mark.parametrize(("rule", "changes"), FAULTS)
@pytest.mark.parametrize("pairs", [1, 10])
def test_a_fault_of_the_tree_counts_against_it_however_fast_the_other_pairs_are(
    rule: str, changes: dict[str, Any], pairs: int
) -> None:
    rows = spoilt(pair_rows(around(1.3, 20)), pairs, **changes)
    arm = summarise_arm(pairs_of(rows), MARGIN, 1)
    assert (arm.n, arm.faults) == (20 - pairs, {rule: pairs})
    assert (arm.standing, arm.pairs_needed) == (Standing.OPEN, None)
    assert f"{rule} in {pairs} of 20 pairs" in arm.reason
    result = verdict(rows)
    assert (result.decision, result.pairs_needed) == (Decision.INCONCLUSIVE, None)
    assert f"but the tree's own fault is {rule} in {pairs} of 20 pairs" in result.reason


def test_a_slower_tree_is_slower_with_faults_too() -> None:
    assert verdict(spoilt(pair_rows(around(0.7, 20)), 5, lossless=False)).decision is Decision.KEEP_LINEAR


def test_a_fault_at_one_load_counts_at_every_other() -> None:
    rows = [pair_rows(around(1.3)), spoilt(pair_rows(around(0.9, 20), concurrency=8), 1, lossless=False)]
    result = verdict(*rows)
    assert (result.decision, result.holds_for) == (Decision.INCONCLUSIVE, ())
    assert "not-lossless in 1 of 20 pairs at concurrency 8" in result.reason


NOT_ITS_FAULT: tuple[dict[str, Any], ...] = (
    {"loop_share": 0.9},
    {"identity_after": "new"},
    {"host_after": HostSample(throttle_reasons=("sw_power_cap",))},
    {"foreign_requests": 2},
    {"live_load": 3.0},
    {"cached_tokens": 20},
)


@pytest.mark.parametrize("changes", NOT_ITS_FAULT, ids=lambda value: next(iter(value)))
def test_pairs_that_host_or_prompts_spoil_are_replaced(changes: dict[str, Any]) -> None:
    arm = summarise_arm(pairs_of(spoilt(pair_rows(around(1.3, 20)), 10, **changes)), MARGIN, 1)
    assert (arm.n, arm.faults, arm.standing) == (10, {}, Standing.BETTER)


@pytest.mark.parametrize(("rule", "changes"), FAULTS[1:])
def test_what_strikes_both_arms_is_no_fault_of_the_tree(rule: str, changes: dict[str, Any]) -> None:
    """A context that is full cuts both texts off; and a linear text that is cut off proves no other text wrong."""
    both = spoilt(spoilt(pair_rows(around(1.3, 20)), 4, **changes), 4, "linear", **changes)
    assert summarise_arm(pairs_of(both), MARGIN, 1).standing is Standing.BETTER
    other_text = spoilt(both, 4, lossless=False)
    blamed = {} if rule != "no-speculation" else {"not-lossless": 4}
    assert summarise_arm(pairs_of(other_text), MARGIN, 1).faults == blamed


def test_without_token_ids_another_text_may_be_a_tie() -> None:
    texts = spoilt(pair_rows(around(1.3, 20)), 20, speculative=False, received=None)
    arm = summarise_arm(pairs_of(spoilt(texts, 5, lossless=False)), MARGIN, 1)
    assert (arm.n, arm.faults, arm.standing) == (15, {}, Standing.BETTER)
    assert "left out: 5 pairs with another text" in arm.reason
    withheld = spoilt(pair_rows(around(1.3, 20)), 5, lossless=False, received=None)
    assert summarise_arm(pairs_of(withheld), MARGIN, 1).faults == {"not-lossless": 5}


def test_the_faults_are_ids_of_rules() -> None:
    assert set(OWN_FAULTS) <= {rule.id for rule in RULES}


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
