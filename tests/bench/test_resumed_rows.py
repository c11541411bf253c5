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
from tasks import benchmark
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
