"""Tree servers that go wrong in the middle of a sweep whose other pairs they win."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.bench.rows import TREE
from orchestrator.bench.summary import Standing
from orchestrator.bench.verdict import Decision
from tests.bench.stub_server import Stub, running_stub
from tests.bench.test_paired import FAST, SLOW, Bench, bench


@pytest.mark.parametrize("rows_at_4", [0, 2])
def test_a_tree_that_dies_under_a_load_is_not_adopted_for_what_it_won_before(rows_at_4: int) -> None:
    with bench() as b:

        def die_under_load(text: str, done: float, total: float) -> None:
            kept = sum(row.concurrency == 4 and row.arm == TREE for row in b.rows)
            b.tree.script.fault = "hang-up" if "tree 64, 4 at once" in text and kept >= rows_at_4 else ""

        result = b.sweep([64], concurrencies=[1, 4], on_progress=die_under_load)
    assert list(result.skipped) == [64]
    assert [(a.concurrency, a.n) for a in result.arms] == [(1, 10), (4, rows_at_4)][: 1 + bool(rows_at_4)]
    assert result.arms[0].standing is Standing.BETTER
    verdict = result.verdict
    assert (verdict.decision, verdict.holds_for, [v.concurrency for v in verdict.loads]) == (
        Decision.INCONCLUSIVE, (), [1, 4]
    )  # fmt: skip
    assert "its measurement ended with an error" in verdict.reason
    assert "1: inconclusive, 4: " in verdict.reason


def test_a_load_that_the_time_did_not_reach_makes_the_verdict_conditional() -> None:
    with bench() as b:
        result = b.sweep([15], concurrencies=[1, 4], out_of_time=lambda: len(b.rows) >= 20)
    verdict = result.verdict
    assert (verdict.decision, verdict.conditional, verdict.holds_for) == (Decision.ADOPT, True, (1,))
    assert "4: not measured" in verdict.reason


@pytest.mark.parametrize(
    ("fault", "rule"), [("salt", "not-lossless"), ("http500", "request-failed"), ("short", "output-short")]
)
def test_pairs_that_the_tree_spoils_are_not_replaced_until_it_wins(fault: str, rule: str) -> None:
    class Moody(Stub):
        """Goes wrong on every other prompt."""

        def _problem(self, path: str, body: dict[str, Any]) -> str:
            odd = any(f"number {n} " in self._prompt(body) for n in range(1, 24, 2))
            self.script.salt = "other" if odd and fault == "salt" else ""
            self.script.fault = fault if odd and fault != "salt" else ""
            return super()._problem(path, body)

    with running_stub(replace(SLOW)) as a, running_stub(replace(FAST), Moody) as t:
        result = Bench(a, t).sweep([15])
    (arm,) = result.arms
    assert (arm.n, arm.invalid_pairs) == (10, 9)
    assert arm.faults[rule] == 9
    assert f"{rule} in 9 of 19 pairs" in result.verdict.reason
    assert result.verdict.decision is Decision.INCONCLUSIVE
