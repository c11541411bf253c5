"""The judgements of the GPU campaign: what counts as equal, as a tie, as another distribution."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from sglang_ddtree.bench import campaign_checks as checks
from sglang_ddtree.bench.campaign import Campaign, Plan, arms_of
from sglang_ddtree.bench.chi_squared import homogeneity
from sglang_ddtree.bench.serve import classified


def test_a_two_by_two_table_by_hand():
    statistic, freedom, p = homogeneity("a" * 30 + "b" * 70, "a" * 50 + "b" * 50)
    assert freedom == 1
    assert math.isclose(statistic, 25 / 3, rel_tol=1e-9)  # (30-40)^2/40 * 2 + (70-60)^2/60 * 2
    assert math.isclose(p, math.erfc(math.sqrt(25 / 6)), rel_tol=1e-6)


def test_equal_sources_pass_and_others_fail():
    draw = random.Random(4)
    rejected = 0
    for _ in range(200):
        a, b = ([min(int(draw.expovariate(0.4)), 40) for _ in range(400)] for _ in range(2))
        rejected += homogeneity(a, b)[2] < 0.05
    assert 2 <= rejected <= 22  # about 10 of 200
    hotter = [min(int(draw.expovariate(0.3)), 40) for _ in range(2000)]
    assert homogeneity([min(int(draw.expovariate(0.4)), 40) for _ in range(2000)], hotter)[2] < 1e-4


def test_rare_outcomes_are_counted_together():
    assert homogeneity(list(range(100)), list(range(100, 200)))[1] == 0  # nothing common: one cell, no test
    assert homogeneity(["x"] * 90 + list(range(10)), ["x"] * 80 + list(range(50, 70)))[1] == 1


class Replies:
    """A server that answers with prepared ids, and prefers its first token by ``gap`` nats."""

    def __init__(self, ids: list[int], gap: float = 0.0) -> None:
        self.ids, self.gap = ids, gap

    def generate(self, ids: Any, tokens: int, **_: Any) -> dict[str, Any]:
        return {"output_ids": self.ids[:tokens], "meta_info": {"spec_verify_ct": 3}}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"meta_info": {"output_top_logprobs": [[[-0.5, 7, None], [-0.5 - self.gap, 8, None]]]}}


@pytest.mark.parametrize(("gap", "kind"), [(0.06, "ties"), (0.2, "different")])
def test_a_difference_is_a_tie_only_where_the_reference_hardly_cares(gap, kind):
    server: Any = Replies([5, 7, 9], gap)
    found = classified(server, [[1]], [[5, 7, 9]], [[5, 8, 9]])
    assert found["equal"] == 0
    assert [row["at"] for row in found[kind]] == [1]
    assert math.isclose(found[kind][0]["gap"], gap, rel_tol=1e-6)


def test_a_token_the_reference_does_not_rank_and_a_short_answer_are_differences():
    server: Any = Replies([5, 7, 9])
    found = classified(server, [[1], [1]], [[5, 7, 9]] * 2, [[5, 99, 9], [5, 7]])
    assert len(found["different"]) == 2


def test_equal_acceptance_needs_equal_passes():
    same: Any = Replies([1, 2])
    other: Any = Replies([1, 3])
    assert checks.equal_acceptance(same, same, [[1]])["ok"]
    assert not checks.equal_acceptance(same, other, [[1]])["ok"]


def test_a_failed_check_is_a_row_and_no_end(tmp_path: Path):
    campaign = Campaign(100, tmp_path / "rows.json", ("pair:not",))
    plan = Plan("pair", "t", "d", 64, on_cpu=True)
    campaign.check(plan, "dies", lambda: {"ok": 1 / 0 > 0})
    campaign.check(plan, "late", lambda: {"ok": True}, needs=1000)
    campaign.check(plan, "not today", lambda: {"ok": True})
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["ok"] for row in rows] == [False, None, None]
    assert "ZeroDivisionError" in rows[0]["error"]
    assert rows[1]["not_run"] != rows[2]["not_run"]


def test_variants_change_one_switch(tmp_path: Path):
    plan = Plan("pair", "target", "draft", 64, on_cpu=False)
    main = plan.arguments("tree")
    for arm in set(arms_of(False, False)) - {"reference", "linear", "tree", "broken draft", "seeded reference"}:
        changed = set(plan.arguments(arm)) ^ set(main)
        assert 1 <= len(changed) <= 2, (arm, changed)
    assert Plan("pair", "t", "d", 64, False, tp=2).arguments("tree")[-6:] != main[-6:]
