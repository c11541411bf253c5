"""The vocabulary of the todo graph: states, priorities, evidence, and what a task is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

Json = Any  # what json.dumps accepts; the store checks it at the border


class State(StrEnum):
    """Where a task stands. `completed` needs evidence; `unknown` needs a probe before anything else."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"
    ROLLED_BACK = "rolled_back"


class Priority(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Cancelled(BaseException):
    """The run was asked to stop, or the task's time is up. Not an Exception: a task must not swallow it."""


@dataclass(frozen=True)
class Outcome:
    """A task's word on how the run ends: its exit code when nothing fails, and the tasks to skip, with the reason."""

    exit_code: int
    reason: str
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Why a task counts as completed: what was checked and what it said.

    `data` is a JSON object with figures; the store adds SHA-256, time and run id when it writes it.
    `outcome` lets the proven task steer the run, for example "measured: keep linear" with exit code 9.
    """

    checked: str
    output: str
    data: Mapping[str, Json] = field(default_factory=dict)
    expires_after_s: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Probe:
    """What is true now. When satisfied, apply is not called and verify confirms the state as found."""

    satisfied: bool
    reason: str
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """One thing that a task would change on the host, for `plan` (kind: file|unit|service|release|process|data)."""

    kind: str
    target: str
    detail: str
    diff: str = ""


@dataclass(frozen=True)
class Retry:
    """How often a failed attempt is repeated; the wait doubles from base_s up to max_s, with jitter."""

    attempts: int = 1
    base_s: float = 1.0
    max_s: float = 60.0


@runtime_checkable
class TaskContext(Protocol):
    """What a task may use while it runs; given by the runner."""

    @property
    def run_id(self) -> str: ...
    @property
    def host(self) -> Any:
        """The HostSession of this task's host (orchestrator.hosts.session)."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """The --set values of this run."""
        ...

    @property
    def store(self) -> Any:
        """The store, for reading only: projections such as the roadmap, and rows of an interrupted attempt."""
        ...

    def output(self, task_key: str) -> Mapping[str, Json]:
        """What an earlier task's apply (or probe) returned; {} if it has none."""
        ...

    @property
    def earlier(self) -> Mapping[str, Json] | None:
        """This task's output in an earlier run with the same inputs whose evidence still holds, else None.

        A probe that measures nothing on the host (a benchmark, a report) says "satisfied" when it accepts this.
        """
        ...

    def log(self, line: str) -> None: ...
    def metric(self, name: str, value: float, **labels: str) -> None: ...
    def fact(self, kind: str, key: str, data: Mapping[str, Json]) -> None:
        """Keep a JSON document about this host (an inspection, a benchmark row, a release) in the store."""
        ...

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None: ...
    def artifact(self, name: str, content: bytes | str) -> str:
        """Keep a file with the run (content-addressed); returns its path."""
        ...

    def check_cancelled(self) -> None:
        """Raise Cancelled when the run was asked to stop; call it between steps that may last."""
        ...


class Action:
    """What a task does; subclasses override what they need. Every method may be called again after a crash.

    probe: looks, changes nothing; when satisfied, its facts stand in for what apply returns.
    apply: makes it so, returns a JSON object that later tasks read.
    verify: proves it from the outside and gives evidence. undo: takes apply back (only called after apply began).
    inputs: values on which the result depends; a change makes the task run again. changes: for `plan`.
    """

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {}

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "nothing is known yet")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        return ()

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        raise NotImplementedError

    def verify(self, ctx: TaskContext) -> Evidence:
        raise NotImplementedError

    def undo(self, ctx: TaskContext) -> None:
        return None

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        """The part of the output on which later tasks depend; leave out times and noise, or they run again."""
        return output


@dataclass(frozen=True)
class TaskSpec:
    """A node of a graph. `changes_host` marks the tasks after which a failure rolls back.

    `occupies_host` marks those that leave nothing behind, yet must not meet another run: engines that are started there,
    measurements. Both kinds hold the host's lock.
    """

    key: str
    content: str
    phase: str
    action: Action
    depends_on: tuple[str, ...] = ()
    priority: Priority = Priority.HIGH
    changes_host: bool = False
    occupies_host: bool = False
    retry: Retry = Retry()
    timeout_s: float = 3600.0
    condition: Callable[[TaskContext], str | None] | None = None  # returns why to skip the task, None to run it
    host: str = ""  # another host of the inventory than the run's

    @property
    def needs_lock(self) -> bool:
        return self.changes_host or self.occupies_host


@dataclass(frozen=True)
class GraphSpec:
    """A named graph, built by an entry point of the group `orchestrate.graphs`.

    `rollback_check` proves (by its verify) that the host is as before, after a failed run was undone.
    """

    name: str
    tasks: tuple[TaskSpec, ...]
    summary: str = ""
    rollback_check: Action | None = None


@dataclass(frozen=True)
class TodoItem:
    """A to-do as agents exchange it."""

    id: str
    content: str
    priority: Priority
    status: str
    state: State
    owner: str | None = None
    updated_at: datetime | None = None
    reason: str = ""
    depends_on: tuple[str, ...] = ()
    bound: bool = False  # a task of a run: only the runner completes it
