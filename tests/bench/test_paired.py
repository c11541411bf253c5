"""The paired sweep against two scripted servers whose speeds are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.bench.arm import Arm
from orchestrator.bench.paired import SweepResult, run_paired_sweep
from orchestrator.bench.prompts import WARM_UP, Prompt
from orchestrator.bench.rows import Row, row_from_json
from orchestrator.bench.summary import pairs_of
from orchestrator.bench.verdict import Decision
from orchestrator.bench.watch import compare
from orchestrator.errors import HostError, UsageError
from tests.bench.stub_server import Script, Stub, running_stub

PROMPTS = [Prompt(id=f"p{i}", text=f"prompt number {i} says") for i in range(24)]
SLOW = Script(step_s=0.004, accept=(1,))
FAST = Script(step_s=0.004, accept=(8,), chain=2.5)


class Bench:
    """Two stubs and everything a sweep reported about them."""

    def __init__(self, linear: Stub, tree: Stub) -> None:
        self.linear, self.tree = linear, tree
        self.opened: list[str] = []
        self.rows: list[Row] = []
        self.switched: list[int] = []
        self.unstartable: set[int] = set()
        self.flush = True

    @contextmanager
    def open_linear(self) -> Iterator[Arm]:
        self.opened.append("linear")
        yield Arm("linear", self.linear.url, flush=self.flush)

    def open_tree(self, budget: int) -> Callable[[], Any]:
        @contextmanager
        def factory() -> Iterator[Arm]:
            if budget in self.unstartable:
                raise HostError(f"no memory for {budget} nodes")
            self.opened.append(f"tree {budget}")
            yield Arm("tree", self.tree.url, budget, switch=lambda: self.switched.append(budget))

        return factory

    def sweep(self, budgets: list[int], pairs: int = 10, **kwargs: Any) -> SweepResult:
        settings: dict[str, Any] = {"prompts": PROMPTS, "max_tokens": 32, "client_delay_limit_s": 5.0}
        return run_paired_sweep(
            self.open_linear, self.open_tree, budgets, pairs=pairs, on_row=self.rows.append, **(settings | kwargs)
        )


@contextmanager
def bench(linear: Script = SLOW, tree: Script = FAST) -> Iterator[Bench]:
    with running_stub(replace(linear)) as a, running_stub(replace(tree)) as b:
        yield Bench(a, b)


def test_a_faster_tree_is_adopted_and_every_figure_fits() -> None:
    with bench() as b:
        result = b.sweep([15])
        assert b.linear.flushes == b.tree.flushes == 10
    assert (result.verdict.decision, result.verdict.budget) == (Decision.ADOPT, 15)
    (arm,) = result.arms
    assert (arm.n, arm.invalid_pairs, arm.blocks) == (10, 0, 11)
    assert arm.linear_tokens_per_step == 1.0
    assert arm.tree_tokens_per_step == pytest.approx(31 / 4)
    assert arm.chain_tokens_per_step == pytest.approx(2.5)
    assert arm.ratio is not None
    assert arm.ratio > 2
    for row in result.rows:
        assert row.stage_ms == pytest.approx({"draft": 2.0, "verify": 5.0} if row.arm == "tree" else {})
    assert list(result.rows) == b.rows
    assert b.switched == [15] * 10
    assert json.loads(json.dumps(result.to_json()))["verdict"]["decision"] == "adopt"


def test_the_order_alternates_so_that_blocks_are_adjacent() -> None:
    with bench() as b:
        b.sweep([15], pairs=4)
    order = [(r.arm, r.block) for r in sorted(b.rows, key=lambda r: r.block)]
    assert order == [
        ("linear", 1), ("tree", 2), ("tree", 2), ("linear", 3), ("linear", 3), ("tree", 4), ("tree", 4), ("linear", 5)
    ]  # fmt: skip


def test_a_service_that_keeps_its_cache_gets_prompts_that_it_never_saw() -> None:
    with bench() as b:
        b.flush = False
        result = b.sweep([15, 32], pairs=3, prompts=PROMPTS[:1])
        seen = [
            [one["text"] for one in stub.seen if "prompt number 0" in str(one.get("text"))]
            for stub in (b.linear, b.tree)
        ]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(seen[0]) == 6
    assert len({text.split("\n")[0] for text in seen[0]}) == 6
    assert {request.prompt_id for row in result.rows for request in row.requests} == {"p0"}
    assert all(row.valid for row in result.rows)


def test_a_prompt_that_is_sent_with_other_words_in_front_stays_one_prompt() -> None:
    with bench() as b:
        b.flush = False
        result = b.sweep([15], prompts=PROMPTS[:1])
    (arm,) = result.arms
    assert (arm.prompts, arm.findings) == (1, {"prompt-set-too-small": 1})
    assert result.verdict.decision is Decision.INCONCLUSIVE


def test_two_sweeps_of_a_service_that_keeps_its_cache_are_compared() -> None:
    with bench() as b:
        b.flush = False
        before, now = b.sweep([15], pairs=4), b.sweep([15], pairs=4)
        sent = [one["text"] for one in b.tree.seen if "prompt number" in str(one.get("text"))]
    assert len(set(sent)) == len(sent) == 8
    assert {change.arm for change in compare(before, now)} == {"linear", "tree 15"}


def test_a_slower_tree_is_stopped_early_and_linear_kept() -> None:
    with bench(linear=FAST, tree=SLOW) as b:
        result = b.sweep([15, 32], pairs=20)
    assert result.verdict.decision is Decision.KEEP_LINEAR
    assert [a.n for a in result.arms] == [6, 6]
    assert "beyond doubt" in result.skipped[15]


def test_in_turns_each_pass_reverses_the_order() -> None:
    with bench() as b:
        result = b.sweep([15, 32], beside=False)
    assert b.opened == ["linear", "tree 15", "tree 32", "tree 32", "tree 15", "linear"]
    assert result.verdict.decision is Decision.ADOPT
    assert [(a.n, a.blocks) for a in result.arms] == [(10, 4), (10, 4)]


@pytest.mark.parametrize("beside", [True, False])
def test_an_interrupted_sweep_goes_on_where_it_stopped(beside: bool) -> None:
    class Stop(Exception):
        pass

    def stop_later(text: str, done: float, total: float) -> None:
        if done >= 3:
            raise Stop

    with bench() as b:
        with pytest.raises(Stop):
            b.sweep([15, 32], pairs=4, beside=beside, on_progress=stop_later)
        kept = [row_from_json(r.to_json()) for r in b.rows]
        assert len(kept) >= 6
        before = len(b.rows)
        result = b.sweep([15, 32], pairs=4, beside=beside, done_rows=kept)
        trees = [r for r in result.rows if r.arm == "tree"]
        assert len(trees) == len({r.key for r in trees}) == 8
        assert all(row in result.rows for row in kept)
        assert len(b.rows) - before == len(result.rows) - len(kept)


@pytest.mark.parametrize(
    "other", [{"max_tokens": 24}, {"temperature": 0.7}, {"group_size": 2}, {"prompts": PROMPTS[1:]}]
)
def test_rows_that_were_asked_otherwise_do_not_count(other: dict[str, Any]) -> None:
    with bench() as b:
        before = b.sweep([15], pairs=2).rows
        b.rows.clear()
        again = b.sweep([15], pairs=2, done_rows=before, **other)
    assert list(again.rows) == b.rows
    assert len(b.rows) == 4


def test_rows_of_other_engines_do_not_count() -> None:
    with bench() as b:
        before = b.sweep([15], pairs=2, fingerprint="a").rows
        assert b.sweep([15], pairs=2, fingerprint="a", done_rows=before).rows == before
        old = [replace(row, fingerprint="") for row in before]
        again = b.sweep([15], pairs=2, fingerprint="b", done_rows=[*before, *old])
    assert [row.fingerprint for row in again.rows] == ["b"] * 4
    assert list(again.rows) == b.rows[4:]


def test_a_budget_that_is_added_later_is_paired_with_linear_rows_of_its_own_time() -> None:
    with bench() as b:
        before = b.sweep([15], pairs=2, beside=False).rows
        result = b.sweep([15, 32], pairs=2, beside=False, done_rows=before)
    last = max(row.block for row in before)
    pairs = [(p.tree.budget, p.linear.block > last, p.tree.block > last) for p in pairs_of(result.rows)]
    assert pairs == [(15, False, False)] * 2 + [(32, True, True)] * 2


def test_a_finished_sweep_opens_no_server_again() -> None:
    with bench() as b:
        done = b.sweep([15], pairs=3).rows
        b.opened.clear()
        again = b.sweep([15], pairs=3, done_rows=done)
    assert b.opened == []
    assert again.rows == done


@pytest.mark.parametrize("beside", [True, False])
def test_other_output_never_wins(beside: bool) -> None:
    with bench(Script(), Script(salt="lossy")) as b:
        result = b.sweep([15], pairs=3, beside=beside)
    assert result.verdict.decision is Decision.INVALID
    assert {f.rule for r in result.rows if r.arm == "tree" for f in r.findings} == {"not-lossless"}


@pytest.mark.parametrize("beside", [True, False])
def test_when_the_time_is_up_what_was_measured_is_summed_up(beside: bool) -> None:
    with bench() as b:
        result = b.sweep([15, 32], pairs=4, beside=beside, out_of_time=lambda: len(b.rows) >= 4)
    assert result.verdict.decision is Decision.INCONCLUSIVE
    assert {r.budget for r in result.rows if r.arm == "tree"} == ({15} if beside else {15, 32})
    assert result.skipped[32] == "no time was left for its other pairs"


@pytest.mark.parametrize(
    ("gap", "allowed", "valid"), [(0.0, 0.1, True), (0.0, 0.0, False), (9.0, 0.1, False), (None, 0.1, False)]
)
def test_outputs_that_part_at_a_tie_of_the_linear_server_count(gap: float | None, allowed: float, valid: bool) -> None:
    with bench(Script(gap=gap), Script(salt="other")) as b:
        result = b.sweep([15], pairs=2, tie_nats=allowed)
    trees = [r for r in result.rows if r.arm == "tree"]
    assert {(r.valid, r.ties) for r in trees} == {(valid, int(valid))}


@pytest.mark.parametrize(("salt", "decision"), [("", Decision.ADOPT), ("lossy", Decision.INVALID)])
def test_sampled_sweeps_pass_a_greedy_gate_first(salt: str, decision: Decision) -> None:
    with bench(tree=Script(step_s=0.004, accept=(8,), salt=salt)) as b:
        result = b.sweep([15], temperature=0.8)
    assert result.verdict.decision is decision


def test_the_greedy_gate_asks_a_server_that_was_told_its_width() -> None:
    with bench() as b:
        asked: list[int] = []
        b.switched = SimpleNamespace(append=lambda budget: asked.append(len(b.tree.seen)))  # type: ignore[assignment]
        b.sweep([15], pairs=1, temperature=0.8)
    assert asked[0] == 0


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("restart", "server-restarted"),
        ("foreign", "foreign-requests"),
        ("busy", "live-load"),
        ("short", "output-short"),
        ("no-usage", "usage-missing"),
        ("no-spec", "no-speculation"),
        ("no-done", "request-failed"),
        ("http500", "request-failed"),
        ("broken-stream", "request-failed"),
    ],
)
def test_faults_of_a_server_invalidate_its_rows(fault: str, rule: str) -> None:
    with bench(Script(), Script(fault=fault)) as b:
        result = b.sweep([15], pairs=2)
    assert result.verdict.decision is Decision.INVALID
    assert all(rule in [f.rule for f in r.findings] for r in result.rows if r.arm == "tree")
    assert all(r.valid for r in result.rows if r.arm == "linear")


def test_eager_mode_in_one_arm_invalidates_both() -> None:
    with bench(Script(device="cuda"), Script(device="cuda", graphs=False)) as b:
        result = b.sweep([15], pairs=2)
    assert {f.rule for r in result.rows for f in r.findings} == {"graphs-off"}
    assert not any(r.valid for r in result.rows)


def test_another_version_in_one_arm_invalidates_both() -> None:
    with bench(Script(), Script(version="0.5.23")) as b:
        result = b.sweep([15], pairs=1)
    assert {f.rule for r in result.rows for f in r.findings} == {"unlike-arms"}
    assert not any(r.valid for r in result.rows)


def test_warm_caches_and_measured_warm_up_prompts_are_refused() -> None:
    with bench(Script(), Script(cached_share=0.9)) as b:
        cached = b.sweep([15], pairs=2)
        overlap = b.sweep([15], pairs=2, warm_up=PROMPTS)
    assert {f.rule for r in cached.rows for f in r.findings} == {"cache-hit"}
    assert {f.rule for r in overlap.rows if r.arm == "linear" for f in r.findings} == {"warm-up-overlap"}
    assert not {p.content_hash for p in WARM_UP} & {p.content_hash for p in PROMPTS}


def test_looping_prompts_are_dropped_once_seen() -> None:
    with bench(Script(fault="loop"), Script(fault="loop")) as b:
        result = b.sweep([15], pairs=4, prompts=PROMPTS[:3])
    assert result.verdict.decision is Decision.INVALID
    assert sorted(r.requests[0].prompt_id for r in result.rows) == ["p0", "p0", "p1", "p1", "p2", "p2"]


def test_a_looping_prompt_does_not_cost_a_pair_of_another_budget() -> None:
    class SomeLoops(Stub):
        def _ids(self, body: dict[str, Any], asked: int) -> list[int]:
            looping = "number 1 " in self._prompt(body)
            return [1, 2] * (asked // 2) if looping else super()._ids(body, asked)

    with running_stub(SLOW, SomeLoops) as a, running_stub(FAST, SomeLoops) as t:
        result = Bench(a, t).sweep([15, 32], pairs=3)
    ids = {b: [r.requests[0].prompt_id for r in result.rows if r.budget == b and r.arm == "tree"] for b in (15, 32)}
    assert ids == {15: ["p0", "p1", "p2", "p3"], 32: ["p0", "p2", "p3"]}
    assert [a.n for a in result.arms] == [3, 3]


@pytest.mark.parametrize(("device", "limit"), [("cpu", 0.1), ("cuda", 0.005)])
def test_the_client_may_run_later_beside_a_cpu_engine(device: str, limit: float) -> None:
    with bench(Script(device=device), Script(device=device)) as b:
        result = b.sweep([15], pairs=1, client_delay_limit_s=None)
    assert {r.client_delay_limit_s for r in result.rows} == {limit}


@pytest.mark.parametrize("beside", [True, False])
def test_a_budget_that_does_not_start_is_skipped_with_its_reason(beside: bool) -> None:
    with bench() as b:
        b.unstartable = {512}
        result = b.sweep([512, 15], beside=beside)
    assert result.skipped == {512: "no memory for 512 nodes"}
    assert (result.verdict.decision, result.verdict.budget) == (Decision.ADOPT, 15)


def test_a_linear_server_that_dies_ends_the_sweep_with_its_error() -> None:
    with bench() as b:

        def die_later(text: str, done: float, total: float) -> None:
            if done >= 1:
                b.linear.script.fault = "hang-up"

        with pytest.raises(HostError, match=str(b.linear.port)):
            b.sweep([15, 32], pairs=3, on_progress=die_later)
    assert "tree 32" not in b.opened


def test_a_tree_server_that_dies_costs_only_its_budget() -> None:
    with bench() as b:

        def die_later(text: str, done: float, total: float) -> None:
            b.tree.script.fault = "hang-up" if "tree 15" in text else ""

        def restarted(budget: int) -> Callable[[], Any]:
            b.tree.script.fault = ""
            return Bench.open_tree(b, budget)

        b.open_tree = restarted  # type: ignore[method-assign]
        result = b.sweep([15, 32], pairs=3, on_progress=die_later)
    assert list(result.skipped) == [15]
    assert [(a.budget, a.n) for a in result.arms] == [(32, 3)]


def test_loads_are_told_apart() -> None:
    with bench() as b:
        result = b.sweep([15], pairs=3, concurrencies=[1, 4])
    assert [(a.concurrency, a.n) for a in result.arms] == [(1, 3), (4, 3)]
    assert {len(r.requests) for r in result.rows if r.concurrency == 4} == {4}


def test_bad_settings_are_refused() -> None:
    with bench() as b:
        for bad in ({"budgets": []}, {"budgets": [0]}, {"budgets": [15], "pairs": 0}, {"budgets": [15], "prompts": []}):
            with pytest.raises(UsageError):
                b.sweep(**bad)  # type: ignore[arg-type]
