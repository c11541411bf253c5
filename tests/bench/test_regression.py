"""`bench --against`: which earlier sweep is meant, what a fall does to the run, and what can't be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.bench.result import SweepResult
from orchestrator.graph.model import Action, Evidence, GraphSpec, Json, Probe, TaskContext, TaskSpec
from orchestrator.graph.runner import Runner, RunResult
from orchestrator.hosts.inventory import HostConfig
from orchestrator.report.run_report import run_report
from orchestrator.report.sweeps import MEASURED_IN, SWEEP, sweep_of
from orchestrator.store.store import Store, open_store
from tasks.regression import HoldAgainst, skip_reason
from tests.bench.test_report import sweep

CONFIG = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")


@dataclass
class Measured(Action):
    """Keeps a sweep, or takes one over from an earlier run."""

    result: SweepResult | None
    taken_from: str = ""

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "not measured")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        if self.result:
            ctx.artifact(SWEEP, json.dumps(self.result.to_json()))
        return {MEASURED_IN: self.taken_from or ctx.run_id, "release": "ddtree-1"}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("looked", "fine")


class Bench:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.known_good: list[Any] = []

    def run(self, result: SweepResult | None, run_id: str, against: str | None = None, taken: str = "") -> RunResult:
        releases = SimpleNamespace(known_good=lambda: self.known_good)
        host = SimpleNamespace(name="local", config=CONFIG, releases=releases)
        graph = GraphSpec(
            "bench",
            (
                TaskSpec("benchmark", "Benchmark tree budgets", "measure", Measured(result, taken)),
                TaskSpec("hold-against", "Hold", "measure", HoldAgainst(), ("benchmark",), condition=skip_reason),
            ),
        )
        settings = {"against": against} if against else {}
        return Runner(self.store, graph, lambda name: host, host="local", settings=settings).run(run_id)

    def good(self, release: str, run_id: str) -> None:
        self.known_good.append(SimpleNamespace(release=release, run_id=run_id))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        made = Bench(store)
        assert made.run(sweep(), "first").exit_code == 0
        yield made


def test_without_a_name_nothing_is_compared(bench: Bench) -> None:
    result = bench.run(sweep(9.0), "now")
    assert (result.exit_code, result.tasks[1].state.value) == (0, "skipped")


@pytest.mark.parametrize("name", ["first", "ddtree-1", "known-good"])
def test_a_fall_beyond_the_margin_fails_the_run_and_names_what_fell(bench: Bench, name: str) -> None:
    bench.good("ddtree-1", "elsewhere")
    assert bench.run(sweep(1.01), "held", name).exit_code == 0
    fell = bench.run(sweep(1.2), "now", "first" if name == "known-good" else name)
    assert fell.exit_code == 1
    assert "tree 64 at 1 at once, speed" in fell.reason
    assert "look at the host first" in fell.reason
    report = run_report(bench.store, "now")
    assert report.compared_with
    assert any(change.worse for change in report.changes)


def test_a_tree_that_gains_less_over_linear_is_seen_on_a_faster_host(bench: Bench) -> None:
    slower_tree = [replace(r, wall_s=r.wall_s * (0.8 if r.arm == "linear" else 1.0)) for r in sweep().rows]
    fell = bench.run(replace(sweep(), rows=tuple(slower_tree)), "now", "first")
    assert fell.exit_code == 1
    assert "speed against linear" in fell.reason
    assert "host first" not in fell.reason


def test_known_good_prefers_the_run_that_proved_a_release(bench: Bench) -> None:
    bench.run(sweep(1.5), "second")
    bench.good("ddtree-1", "first")
    assert bench.run(sweep(1.5), "now", "known-good").exit_code == 1


def test_a_sweep_is_never_held_against_itself(bench: Bench) -> None:
    again = bench.run(None, "now", "first", taken="first")
    assert again.exit_code == 2
    assert "no earlier sweep on 'local' fits" in again.reason
    assert sweep_of(bench.store, "now") == sweep()


def test_unknown_names_and_other_prompts_are_no_comparison(bench: Bench) -> None:
    unknown = bench.run(sweep(), "a", "nowhere")
    assert (unknown.exit_code, "sweeps: first" in unknown.reason) == (2, True)
    other = replace(sweep(), rows=tuple(replace(r, prompt_hashes=("z",)) for r in sweep().rows))
    apart = bench.run(other, "b", "first")
    assert apart.exit_code == 8
    assert "same prompts" in apart.reason
