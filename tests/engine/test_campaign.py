"""The judgements of the GPU campaign: what counts as equal, as a tie, as another distribution."""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_ddtree.bench import campaign as campaign_module
from sglang_ddtree.bench import campaign_checks as checks
from sglang_ddtree.bench.campaign import Campaign
from sglang_ddtree.bench.campaign_long import greatest_gap
from sglang_ddtree.bench.campaign_plan import (
    ENGINE,
    MAIN,
    NARROW,
    NARROW_CHANGE,
    REFUSED,
    SEEDED,
    TWO_GPUS,
    VARIANTS,
    Plan,
    Reference,
    arms_of,
    changed_engine,
)
from sglang_ddtree.bench.chi_squared import homogeneity
from sglang_ddtree.bench.serve import classified
from sglang_ddtree.bench.server import Server, ddtree


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


def test_a_tree_is_not_started_without_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(SystemExit, match=r"the plug-in is not installed for .*; install it there with `pip install"):
        Server("tree", ddtree("draft", "fa3", 17), 1, tmp_path / "log")
    assert not (tmp_path / "log").exists()


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


def test_only_the_checks_asked_for_leave_rows(tmp_path: Path):
    campaign = Campaign(100, tmp_path / "rows.json", only=("late", "drift"))
    plan = Plan("pair", "t", "d", 64, on_cpu=True)
    for name in ("early", "late: tree"):
        campaign.check(plan, name, lambda: {"ok": True})
    assert [row["check"] for row in campaign.rows] == ["late: tree"]
    assert campaign.wants("drift of a state")


def test_a_seeded_reference_that_does_not_start_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Stub:
        """A server that is up, or has ended."""

        def __init__(self, up: bool) -> None:
            self.up = up

        def wait(self, seconds: float) -> bool:
            return self.up

        def alive(self) -> bool:
            return self.up

        def tail(self, lines: int) -> str:
            return "why it ended"

        def stop(self) -> None:
            self.up = False

    def start(plan: Plan, arms: list[str], logs: Path, port: int) -> None:
        plan.servers |= {arm: Stub(arm != SEEDED[0]) for arm in arms}  # type: ignore[misc]

    monkeypatch.setattr(Plan, "start", start)
    monkeypatch.setattr(campaign_module, "main_checks", lambda *_: None)
    campaign = Campaign(100, None)
    plan = Plan("pair", "t", "d", 64, on_cpu=False)
    campaign_module.check_pair(campaign, plan, [*MAIN, *SEEDED], tmp_path, 0, [[1]])
    assert [(row["check"], row["log"]) for row in campaign.rows] == [(f"start: {SEEDED[0]}", "why it ended")]


def test_arms_without_what_they_are_compared_with_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    models = ENGINE / "models"
    monkeypatch.setattr(
        "sys.argv",
        ["campaign", str(models), "--pairs", "tiny-dense", "--arms", f"reference,{TWO_GPUS}", "--only", "none"],
    )
    with pytest.raises(SystemExit) as left:
        campaign_module.main()
    assert left.value.code == 2
    assert "lack tree" in capsys.readouterr().err


def test_a_server_that_answers_no_http_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """A connection to a loopback port that nobody listens on yet may meet itself and read its own request."""
    answers = [http.client.BadStatusLine("GET /health HTTP/1.1"), ConnectionRefusedError(), "{}"]

    def get(self: Server, path: str, timeout: float) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(Server, "get", get)
    monkeypatch.setattr(Server, "alive", lambda self: True)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert Server.wait(object.__new__(Server), 60)
    assert not answers


def test_variants_change_one_switch(tmp_path: Path):
    plan = Plan("pair", "target", "draft", 64, on_cpu=False)
    main = plan.arguments("tree")
    for arm in VARIANTS:
        changed = set(plan.arguments(arm)) ^ set(main)
        assert 1 <= len(changed) <= 2, (arm, changed)
    assert {"--tp-size", "2"} <= set(plan.arguments(TWO_GPUS)) - set(main)
    assert plan.environment("widths", tmp_path)["SGLANG_DDTREE_CONTROL_TOKEN"] == plan.token


def test_every_arm_is_asked_something_or_must_not_start():
    arms = set(arms_of(False, False)) - {*MAIN, *VARIANTS, *SEEDED, *REFUSED}
    assert arms == {"widths", NARROW, "broken draft"}
    assert set(arms_of(False, True, 2)) - set(arms_of(False, True)) == {TWO_GPUS}
    assert set(arms_of(False, True)) < set(arms_of(False, False))


def test_a_control_changes_one_line_of_a_copy(tmp_path: Path):
    folder = changed_engine(*NARROW_CHANGE, tmp_path / "engine")
    ours = (ENGINE / "sglang_ddtree" / NARROW_CHANGE[0]).read_text().splitlines()
    theirs = (folder / "sglang_ddtree" / NARROW_CHANGE[0]).read_text().splitlines()
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) == 1
    with pytest.raises(ValueError, match="0 times"):
        changed_engine(NARROW_CHANGE[0], "no such line", "", tmp_path / "again")


def test_a_campaign_finds_the_converter_beside_the_models(tmp_path: Path):
    """Where the plugin was installed as a package of its own, nothing else of ours is on the path."""
    (tmp_path / "sglang_ddtree").symlink_to(ENGINE / "sglang_ddtree")
    code = (
        "import pathlib, sys; from sglang_ddtree.bench.campaign_plan import target_for; "
        "print(target_for(pathlib.Path(sys.argv[1])))"
    )
    folder = ENGINE / "models" / "tiny-dense"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == str(folder / "target"), done.stderr


class Reader(Replies):
    """A server that reads a text and finds each token ``gaps`` nats worse than its favourite."""

    def __init__(self, gaps: list[float]) -> None:
        super().__init__([5, 7, 9])
        self.gaps = gaps

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        said = [[None, 1, None]] + [[-0.5 - gap, 7, None] for gap in self.gaps]
        best = [None] + [[[-0.5, 8, None]] for _ in self.gaps]
        return {"meta_info": {"input_token_logprobs": said, "input_top_logprobs": best}}


def test_the_greatest_gap_of_a_text_is_found_and_a_short_score_is_no_score():
    server: Any = Reader([0.0, 1.5, 0.25])
    assert math.isclose(greatest_gap(server, [1], [5, 7, 9]), 1.5)
    with pytest.raises(ValueError, match="scored 3 of 9"):
        greatest_gap(server, [1], [5] * 9)


def test_a_server_that_must_not_start_has_to_say_why_and_end(tmp_path: Path):
    def server(code: str) -> Any:
        log = tmp_path / "log"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=log.open("w"), stderr=subprocess.STDOUT)
        tail = lambda lines: "\n".join(log.read_text().splitlines()[-lines:])  # noqa: E731
        return SimpleNamespace(process=process, log=log, tail=tail)

    assert checks.refused(server("raise SystemExit('it does not fit')"), "fit", 20)["ok"]
    assert not checks.refused(server("print('it does not fit')"), "fit", 20)["ok"]
    assert not checks.refused(server("raise SystemExit('other')"), "fit", 20)["ok"]
    slow = server("import time; time.sleep(60)")
    assert not checks.refused(slow, "fit", 0)["ok"]
    slow.process.kill()


def test_the_reference_keeps_greedy_answers_only(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(Server, "post", lambda self, path, body, timeout=120: asked.append(body) or {"output_ids": []})
    reference = Reference.__new__(Reference)
    reference._known, reference._lock = {}, threading.RLock()
    for _ in range(2):
        reference.generate([1], 4)
        reference.generate([1], 4, temperature=1.0)
    assert len(asked) == 3
