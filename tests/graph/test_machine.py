"""Random histories of a deployment: faults, crashes, drift, expired evidence and resumes in any order.

After every step the stored states are those that the events tell, and no effect was made twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.graph.model import Evidence, GraphSpec, Probe, State, TaskContext
from orchestrator.graph.runner import Runner
from orchestrator.graph.scheduler import Limits
from orchestrator.store.events import EventLog
from orchestrator.store.records import Event, RunState
from orchestrator.store.store import Store, open_store
from orchestrator.transport.base import ConnectionLost
from tests.graph.conftest import task
from tests.graph.fake_host import Effect, FakeHost, Look, NothingLeft

LIMITS = Limits(grace_s=0.2, reconnect_base_s=0.001)
FAULTS = (None, None, None, RuntimeError("broken"), ConnectionLost("gone"))


class Crash(BaseException):
    """The process is gone: from here on nothing more is written."""


class CrashingLog(EventLog):
    """Refuses every event from number `at` on, as if the process had been killed there."""

    at: int | None = None
    written = 0

    def append(self, *args: Any, **kwargs: Any) -> Event:
        self.written += 1
        if self.at is not None and self.written >= self.at:
            raise Crash
        return super().append(*args, **kwargs)


class Flaky(Effect):
    """An effect whose calls fail as the machine says."""

    def __init__(
        self, fault: Callable[[], BaseException | None], expires: Callable[[], float | None], *parts: str
    ) -> None:
        super().__init__(*parts)
        self._fault = fault
        self._expires = expires

    def _maybe(self) -> None:
        fault = self._fault()
        if fault is not None:
            raise fault

    def probe(self, ctx: TaskContext) -> Probe:
        self._maybe()
        return super().probe(ctx)

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        self._maybe()
        output = super().apply(ctx)
        self._maybe()
        return output

    def verify(self, ctx: TaskContext) -> Evidence:
        self._maybe()
        found = super().verify(ctx)
        return Evidence(found.checked, found.output, expires_after_s=self._expires())

    def undo(self, ctx: TaskContext) -> None:
        self._maybe()
        super().undo(ctx)


BUILDS_ON = {"a": "b", "b": "c", "c": "end"}  # task: the one that depends on it directly


class Deployment(RuleBasedStateMachine):
    """One run that is started, hurt and resumed again and again."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1_800_000_000.0
        self.store: Store = open_store(f"sqlite:///{self.folder.name}/state.db", clock=lambda: self.now)
        self.log = CrashingLog(self.store.database, lambda: self.now)
        self.store.events = self.store.leases._events = self.log
        self.host = FakeHost(Path(self.folder.name))
        self.faults: list[BaseException | None] = []
        self.expires: float | None = None
        self.exit_code: int | None = None
        self.started = False
        self.unseen: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    @rule(
        faults=st.lists(st.sampled_from(FAULTS), max_size=12),
        crash=st.none() | st.integers(1, 40),
        expires=st.none() | st.just(100.0),
    )
    def run(self, faults: list[BaseException | None], crash: int | None, expires: float | None) -> None:
        self.faults, self.expires = list(faults), expires
        self.log.at, self.log.written = crash, 0
        runner = Runner(self.store, self.graph(), lambda name: self.host, host="fake", limits=LIMITS)
        self.exit_code = None
        try:
            self.exit_code = runner.run("r1", resume=self.started).exit_code
        except Crash:
            self._process_is_gone()
        self.started = bool(self.store.runs.list())
        self.unseen -= self.host.parts()

    @precondition(lambda self: self.started)
    @rule(part=st.sampled_from(["a1", "a2", "b1", "c1"]))
    def drift(self, part: str) -> None:
        """A resume looks again only at changes on which unfinished tasks build directly; a new run looks at all."""
        if self.host.has(part):
            self.host.do(f"drop {part}")
            self.exit_code = None
            states = self.store.tasks.states("r1")
            owner = part[0]
            if all(states[key] is State.COMPLETED for key in (owner, BUILDS_ON[owner])):
                self.unseen.add(part)

    @rule(seconds=st.sampled_from([1.0, 1000.0, -5000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def graph(self) -> GraphSpec:
        def effect(*parts: str) -> Flaky:
            return Flaky(self._fault, lambda: self.expires, *parts)

        return GraphSpec(
            "g",
            (
                task("look", Look()),
                task("a", effect("a1", "a2"), "look", changes_host=True),
                task("side", Look(), "look"),
                task("b", effect("b1"), "a", changes_host=True),
                task("c", effect("c1"), "b", "side", changes_host=True),
                task("end", Look(), "c"),
            ),
            rollback_check=NothingLeft(),
        )

    def _fault(self) -> BaseException | None:
        return self.faults.pop(0) if self.faults else None

    def _process_is_gone(self) -> None:
        """A real crash ends the process, so its lease is free; here the same process lives on."""
        self.log.at = None
        if self.store.leases.get("fake"):
            self.store.leases.steal("fake", "test", "crashed")

    @invariant()
    def states_are_what_the_events_tell(self) -> None:
        if not getattr(self, "started", False):
            return
        stored = {item.key: str(item.state) for item in self.store.tasks.list("r1")}
        told = dict.fromkeys(stored, "pending")
        for event in self.store.events.tail(limit=100_000):
            new = _told(event)
            if new is not None and event.task_key is not None:
                told[event.task_key] = new
        assert told == stored

    @invariant()
    def no_effect_is_made_twice(self) -> None:
        if not hasattr(self, "host"):
            return
        there: set[str] = set()
        for line in self.host.lines():
            verb, part = line.split()
            assert (part in there) == (verb == "drop"), f"{line} though it was {'there' if part in there else 'gone'}"
            (there.add if verb == "make" else there.discard)(part)

    @invariant()
    def the_exit_code_is_true(self) -> None:
        code = getattr(self, "exit_code", None)
        if code == 0:
            assert self.host.parts() | self.unseen == {"a1", "a2", "b1", "c1"}
        if code == 4:
            assert self.host.parts() == set()
        if code is not None:
            assert not self.store.runs.get("r1").state.active

    @invariant()
    def completed_means_proved(self) -> None:
        if getattr(self, "started", False):
            for item in self.store.tasks.list("r1"):
                if item.state is State.COMPLETED:
                    assert item.evidence_id is not None
                    assert self.store.evidence.get(item.evidence_id).task_key == item.key
            assert self.store.runs.get("r1").state in RunState


def _told(event: Event) -> str | None:
    """The state into which an event puts its task."""
    kind = event.kind.removeprefix("task.")
    if kind in ("completed", "failed", "unknown", "pending", "skipped", "rolled_back"):
        return kind
    if kind == "retry":
        return str(event.data["state"])
    return {"claimed": "in_progress", "reused": "completed", "reopened": "pending"}.get(kind)


TestDeployment = Deployment.TestCase
TestDeployment.settings = settings(
    max_examples=25, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
)
