"""A store in a temporary folder, a fake host, and actions that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.graph.model import Action, Evidence, GraphSpec, Probe, TaskContext, TaskSpec
from orchestrator.graph.runner import Runner
from orchestrator.graph.scheduler import Limits
from orchestrator.store.store import Store, open_store
from tests.graph.fake_host import FakeHost

FAST = Limits(grace_s=0.2, reconnect_base_s=0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/state.db") as opened:
        yield opened


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


class Do(Action):
    """Calls what it was given; counts every call by name."""

    def __init__(
        self,
        apply: Callable[[TaskContext], Mapping[str, Any]] = lambda ctx: {},
        probe: Callable[[TaskContext], Probe] = lambda ctx: Probe(False, "not there"),
        verify: Callable[[TaskContext], Evidence] = lambda ctx: Evidence("looked", "fine"),
        undo: Callable[[TaskContext], None] = lambda ctx: None,
        inputs: Callable[[TaskContext], Mapping[str, Any]] = lambda ctx: {},
    ) -> None:
        self._calls = {"apply": apply, "probe": probe, "verify": verify, "undo": undo, "inputs": inputs}
        self.calls: list[str] = []

    def _call(self, name: str, ctx: TaskContext) -> Any:
        self.calls.append(name)
        return self._calls[name](ctx)

    def inputs(self, ctx: TaskContext) -> Mapping[str, Any]:
        return self._call("inputs", ctx)

    def probe(self, ctx: TaskContext) -> Probe:
        return self._call("probe", ctx)

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        return self._call("apply", ctx)

    def verify(self, ctx: TaskContext) -> Evidence:
        return self._call("verify", ctx)

    def undo(self, ctx: TaskContext) -> None:
        self._call("undo", ctx)


def task(key: str, action: Action, *depends_on: str, **fields: Any) -> TaskSpec:
    return TaskSpec(key, f"Do {key}", "phase", action, depends_on, **fields)


def graph(*tasks: TaskSpec, **fields: Any) -> GraphSpec:
    return GraphSpec("g", tasks, **fields)


def runner(store: Store, spec: GraphSpec, host: Any = None, **options: Any) -> Runner:
    return Runner(store, spec, lambda name: host, host="local", **{"limits": FAST, **options})


def states(store: Store, run_id: str) -> dict[str, str]:
    return {item.key: str(item.state) for item in store.tasks.list(run_id)}


def kinds(store: Store, run_id: str, key: str | None = None) -> list[str]:
    return [event.kind for event in store.events.tail(run_id=run_id, task_key=key)]
