"""Which rows of a run's earlier attempts count when its sweep is measured again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.graph.model import Action, Evidence, GraphSpec, Probe, TaskContext, TaskSpec
from orchestrator.graph.runner import Runner, RunResult
from orchestrator.hosts.inventory import HostConfig
from orchestrator.store.store import Store, open_store
from tasks import benchmark, other_server
from tasks.other_server import BenchServer, OtherServer
from tests.bench.rowkit import row

FRESH_S = 100.0
HOST = SimpleNamespace(config=HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-hybrid"))


class Sweep(Action):
    """Measures one more row at each attempt, and notes which it found; `breaks` ends it before it is done."""

    def __init__(self) -> None:
        self.found: list[list[int]] = []
        self.breaks = False

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(ctx.earlier is not None, "measured")

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        self.found.append([one.pair for one in benchmark._rows_of_this_run(ctx)])
        benchmark._keep_row(ctx, replace(row(), pair=len(self.found)))
        if self.breaks:
            raise RuntimeError("the connection broke")
        return {}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("sweep", "measured", {}, FRESH_S)


@pytest.fixture
def now() -> list[float]:
    return [1_800_000_000.0]


@pytest.fixture
def store(tmp_path: Path, now: list[float]) -> Iterator[Store]:
    def clock() -> float:
        now[0] += 0.001
        return now[0]

    with open_store(f"sqlite:///{tmp_path}/state.db", clock=clock) as opened:
        yield opened


def run(store: Store, sweep: Sweep, **options: Any) -> RunResult:
    spec = GraphSpec("bench", (TaskSpec(benchmark.KEY, "Measure", "measure", sweep),))
    settings = {"fresh_s": str(FRESH_S)}
    return Runner(store, spec, lambda name: HOST, host="local", settings=settings).run(**options)


def test_rows_of_an_interrupted_sweep_count_until_they_are_old(store: Store, now: list[float]) -> None:
    sweep = Sweep()
    sweep.breaks = True
    run_id = run(store, sweep).run_id
    run(store, sweep, run_id=run_id, resume=True)
    now[0] += FRESH_S
    run(store, sweep, run_id=run_id, resume=True)
    assert sweep.found == [[], [1], []]


class Told:
    """A task context that says nothing but which engines are measured."""

    def __init__(self, release: str = "ddtree-1", linear: str = "found-1", **settings: str) -> None:
        self.host, self.settings = HOST, settings
        self.outputs = {"build-release": {"release": release}, "record-linear": {"release": linear}}

    def output(self, key: str) -> Mapping[str, Any]:
        return self.outputs.get(key, {})


def fingerprint(action: benchmark.BenchBudgets, told: Told) -> str:
    return action.fingerprint(told)  # type: ignore[arg-type]


def test_what_is_measured_is_told_by_releases_and_knobs() -> None:
    """More pairs or budgets leave rows as they are; a process that was started anew for the same release does too."""
    action, first = benchmark.BenchBudgets(), fingerprint(benchmark.BenchBudgets(), Told())
    longer = Told(pairs="9", budgets="15,64", margin="0.1")
    longer.outputs["canary"] = {"unit": "sglang-canary", "pid": 4711}
    assert fingerprint(action, longer) == first
    others = [fingerprint(action, Told("ddtree-2")), fingerprint(action, Told(linear="found-2"))]
    assert len({first, *others}) == 3


def test_a_server_of_somebodys_own_is_told_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for start in ("monday", "tuesday", "tuesday"):
        server = OtherServer(30050, 77, start, "python serve.py", True, "m", 15)
        monkeypatch.setattr(other_server, "server_of", lambda ctx, server=server: server)
        told.append(fingerprint(BenchServer(), Told(tree_server="30050")))
    assert told[0] != told[1] == told[2]


def test_the_sweep_of_a_task_takes_rows_with_its_own_fingerprint_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(benchmark, "run_paired_sweep", lambda *_, **given: asked.update(given))
    monkeypatch.setattr(benchmark, "_rows_of_this_run", lambda ctx: [row()])
    monkeypatch.setattr(benchmark, "_kept", lambda ctx, result: {})
    monkeypatch.setattr(benchmark.BenchBudgets, "_prompts", lambda self, ctx: [])
    told: Any = Told()
    benchmark.BenchBudgets().apply(told)
    assert asked["fingerprint"] == fingerprint(benchmark.BenchBudgets(), told) != ""


def test_a_sweep_whose_evidence_expired_is_measured_anew(store: Store, now: list[float]) -> None:
    sweep = Sweep()
    sweep.breaks = True
    run_id = run(store, sweep).run_id
    sweep.breaks = False
    assert run(store, sweep, run_id=run_id, resume=True).exit_code == 0
    now[0] += FRESH_S / 2
    run(store, sweep, run_id=run_id, resume=True)
    now[0] += FRESH_S
    run(store, sweep, run_id=run_id, resume=True)
    assert sweep.found == [[], [1], []]
