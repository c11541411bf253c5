"""What becomes of a sweep whose linear service dies, is restarted, or is out of reach: the arm asks the host what runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.bench.arm import Arm
from orchestrator.bench.paired import run_paired_sweep
from orchestrator.bench.result import SweepResult
from orchestrator.bench.rows import Row
from orchestrator.errors import HostError
from orchestrator.remote.services import ServiceStatus
from orchestrator.transport.base import ConnectionLost, HostUnreachable
from tasks import linear
from tasks.benchmark import _linear_arm
from tests.bench.stub_server import Script, Stub, running_stub
from tests.bench.test_paired import FAST, PROMPTS, SLOW

RUNS = ServiceStatus("active", main_pid=100)


class Place:
    """A host whose linear service and tree server are stubs; `status` is what its services driver says, or raises."""

    def __init__(self, line: Stub, tree: Stub) -> None:
        self.line, self.tree = line, tree
        self.status: ServiceStatus | HostError = RUNS
        self.asked = 0
        self.rows: list[Row] = []
        definition = SimpleNamespace(argv=("--speculative-algorithm", "DFLASH"))
        session = SimpleNamespace(
            name="h1",
            unit="sglang",
            config=SimpleNamespace(transport="ssh", engine="sglang-cpu", service=SimpleNamespace(port=1)),
            services=SimpleNamespace(definition=lambda unit: definition, status=self.told),
            http=self.http,
        )
        self.ctx: Any = SimpleNamespace(host=session)

    def told(self, unit: str) -> ServiceStatus:
        assert unit == "sglang"
        self.asked += 1
        if isinstance(self.status, HostError):
            raise self.status
        return self.status

    @contextmanager
    def http(self) -> Iterator[str]:
        yield self.line.url

    def open_tree(self, budget: int) -> Callable[[], Any]:
        @contextmanager
        def factory() -> Iterator[Arm]:
            yield Arm(f"ddtree-{budget}", self.tree.url, budget)

        return factory

    def sweep(self, at_tree_32: Callable[[], None] = lambda: None) -> SweepResult:
        def progress(text: str, done: float, total: float) -> None:
            if "tree 32" in text:
                at_tree_32()

        return run_paired_sweep(
            lambda: _linear_arm(self.ctx, ()), self.open_tree, [15, 32, 64], PROMPTS, 2, 32,
            on_row=self.rows.append, on_progress=progress, client_delay_limit_s=5.0,
        )  # fmt: skip


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(linear, "wait_ready", lambda *_: 100)
    with running_stub(Script(**vars(SLOW))) as line, running_stub(Script(**vars(FAST))) as tree:
        yield Place(line, tree)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (ServiceStatus("failed", detail="result oom-kill"), "'sglang' of 'h1' does not run any more .result oom-kill."),
        (ServiceStatus("active", main_pid=200), "it was pid 100 and is pid 200"),
        (HostUnreachable("h1 does not answer"), "h1 does not answer"),
    ],
)
def test_a_linear_service_that_is_gone_ends_the_sweep_and_blames_no_tree(
    place: Place, then: ServiceStatus | HostError, said: str
) -> None:
    def gone() -> None:
        place.status, place.tree.script.fault = then, "hang-up"

    with pytest.raises(HostError, match=said):
        place.sweep(gone)
    assert {row.budget for row in place.rows if row.arm == "tree"} == {15}


def test_a_linear_service_that_hangs_ends_the_sweep(place: Place) -> None:
    def hang() -> None:
        place.line.script.fault = "hang-up"

    with pytest.raises(HostError, match=str(place.line.port)):
        place.sweep(hang)


def test_a_connection_that_broke_and_came_back_costs_no_budget(place: Place) -> None:
    def broken(budget: int) -> Callable[[], Any]:
        if budget == 32:
            raise ConnectionLost("h1: the connection broke")
        return Place.open_tree(place, budget)

    place.open_tree = broken  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost):
        place.sweep()


def test_a_restart_in_the_middle_of_a_row_makes_it_invalid(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    generated = place.line._count

    def restarted(*counted: Any) -> None:
        generated(*counted)
        pid = 100 + len(place.line.seen)
        place.status = ServiceStatus("active", main_pid=pid)

    monkeypatch.setattr(place.line, "_count", restarted)
    result = place.sweep()
    assert {f.rule for row in result.rows if row.arm == "linear" for f in row.findings} == {"server-restarted"}


def test_the_host_is_asked_twice_a_row_and_no_more(place: Place) -> None:
    result = place.sweep()
    rows = [row for row in result.rows if row.arm == "linear"]
    assert {row.identity_before for row in rows} == {row.identity_after for row in rows} == {"pid 100"}
    assert place.asked == 1 + 1 + 2 * len(rows)  # whether it serves linear, as it is opened, before and after each row
