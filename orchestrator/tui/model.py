"""The read model of a run: an immutable picture of the store, brought forward by event number. Owns no truth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import State
from orchestrator.graph.scheduler import NOT_SELECTED
from orchestrator.store.facts import Fact
from orchestrator.store.leases import Lease
from orchestrator.store.process import ProcessName
from orchestrator.store.records import Event, RunRecord, TaskRecord
from orchestrator.store.store import Store
from orchestrator.tui.words import amount

BATCH = 2_000
REREAD_ALL = 40  # with more changed tasks than this one query for all is cheaper than one for each
HOST_FACTS = ("inspection", "release", "service", "gpu", "deadman", "drift")
RUN_FACTS = ("bench.row", "bench.result", "smoke")
_OVER = (State.COMPLETED, State.SKIPPED)
FactKey = tuple[str, str, str | None]  # kind, key, host


@dataclass(frozen=True)
class Progress:
    """The last word of a task on how far it is."""

    text: str
    done: float | None
    total: float | None

    def __str__(self) -> str:
        if self.done is None or not self.total:
            return self.text
        return f"{self.text} {amount(self.done)}/{amount(self.total)}"


@dataclass(frozen=True)
class Reading:
    """A run as the store showed it at one moment. `seq` is the newest event that it takes into account."""

    run: RunRecord | None = None
    tasks: Mapping[str, TaskRecord] = field(default_factory=dict)
    facts: Mapping[FactKey, Fact] = field(default_factory=dict)
    measured: tuple[Fact, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    lease: Lease | None = None
    seq: int = 0
    store_seq: int = 0
    fact_id: int = 0
    process_gone: bool = False

    @cached_property
    def counts(self) -> Counter[State]:
        return Counter(task.state for task in self.tasks.values())

    @cached_property
    def phases(self) -> Mapping[str, tuple[TaskRecord, ...]]:
        """The tasks of each phase, both in the order of the graph."""
        grouped: dict[str, list[TaskRecord]] = {}
        for task in self.tasks.values():
            grouped.setdefault(task.phase, []).append(task)
        return {phase: tuple(tasks) for phase, tasks in grouped.items()}

    @cached_property
    def left(self) -> tuple[TaskRecord, ...]:
        """What the run has still to do, in the order of the graph; a task that was only not selected is done later."""
        return tuple(
            task
            for task in self.tasks.values()
            if task.state not in _OVER or (task.state is State.SKIPPED and task.reason == NOT_SELECTED)
        )

    @property
    def finished(self) -> bool:
        return self.run is not None and not self.run.state.active

    def facts_of(self, kind: str, host: str | None = None) -> list[Fact]:
        """Of a host the newest fact of every key, oldest first."""
        found = (fact for (k, _, h), fact in self.facts.items() if k == kind and (host is None or h in (host, None)))
        return sorted(found, key=lambda fact: fact.id)

    def measured_of(self, kind: str) -> list[Fact]:
        """All facts of a kind that this run recorded, oldest first."""
        return [fact for fact in self.measured if fact.kind == kind]

    def waits_for(self, key: str) -> tuple[TaskRecord, ...]:
        """The tasks that have to be done before this one may start."""
        task = self.tasks.get(key)
        if task is None or task.state not in (State.PENDING, State.UNKNOWN):
            return ()
        needed = (self.tasks[name] for name in task.depends_on if name in self.tasks)
        return tuple(item for item in needed if item.state not in (State.COMPLETED, State.SKIPPED))


@dataclass(frozen=True)
class Delta:
    """What is new since the reading before: events of the run, and which tasks and kinds of facts changed."""

    events: tuple[Event, ...] = ()
    tasks: frozenset[str] = frozenset()
    facts: frozenset[str] = frozenset()
    store_moved: bool = False
    run_changed: bool = False
    lease_moved: bool = False  # the holder of the lock showed a sign of life, or is another one

    def __bool__(self) -> bool:
        moved = self.store_moved or self.run_changed or self.lease_moved
        return bool(self.events or self.tasks or self.facts or moved)


def first_reading(store: Store, run_id: str | None) -> Reading:
    """The whole run at once; later readings only look at what is new. UsageError for an unknown run."""
    with store.snapshot():
        run = store.runs.get(run_id) if run_id else None
        seq = store.events.last_seq(run.id) if run else 0
        tasks = {task.key: task for task in store.tasks.list(run.id)} if run else {}
        running = [task.key for task in tasks.values() if task.state is State.IN_PROGRESS]
        progress = [event for key in running for event in _last_progress(store, run, key)]
        reading = Reading(
            run=run, tasks=tasks, progress=_progress({}, progress), lease=store.leases.get(run.host) if run else None,
            seq=seq, store_seq=store.events.last_seq(),
        )  # fmt: skip
        return replace(_with_facts(reading, store), process_gone=_process_gone(store, reading))


def advance(store: Store, before: Reading) -> tuple[Reading, Delta]:
    """What changed since `before`; cheap when nothing did. Reads at most BATCH events at a time."""
    with store.snapshot():
        store_seq = store.events.last_seq()
        if before.run is None:
            reading = replace(_with_facts(before, store), store_seq=store_seq)
            return reading, Delta(store_moved=store_seq != before.store_seq, facts=_changed_kinds(before, reading))
        run = store.runs.get(before.run.id)
        events = store.events.tail(before.seq, run.id, limit=BATCH) if store_seq != before.store_seq else []
        if len(events) == BATCH:
            store_seq = before.store_seq  # there is more: look again at once
        touched = frozenset(event.task_key for event in events if event.task_key and _moves_task(event))
        reading = replace(
            before, run=run, tasks=_tasks(store, before, touched), progress=_progress(before.progress, events),
            lease=store.leases.get(run.host), seq=events[-1].seq if events else before.seq, store_seq=store_seq,
        )  # fmt: skip
        if store_seq != before.store_seq or events:
            moved_proofs = any(event.kind in ("task.reused", "task.reopened") for event in events)
            reading = _with_facts(reading, store, measured_anew=moved_proofs)
        reading = replace(reading, process_gone=_process_gone(store, reading))
    run_changed = (reading.run, reading.process_gone, _held(reading)) != (
        before.run, before.process_gone, _held(before),
    )  # fmt: skip
    moved = store_seq != before.store_seq
    facts, lease_moved = _changed_kinds(before, reading), reading.lease != before.lease
    return reading, Delta(tuple(events), touched, facts, moved, run_changed, lease_moved)


def _moves_task(event: Event) -> bool:
    return event.kind.startswith("task.")


def _tasks(store: Store, before: Reading, touched: frozenset[str]) -> Mapping[str, TaskRecord]:
    assert before.run is not None
    if not touched:
        return before.tasks
    if len(touched) > REREAD_ALL or not touched.issubset(before.tasks):
        return {task.key: task for task in store.tasks.list(before.run.id)}
    fresh = {key: store.tasks.get(before.run.id, key) for key in touched}
    return {key: fresh.get(key, task) for key, task in before.tasks.items()}


def _last_progress(store: Store, run: RunRecord | None, key: str) -> list[Event]:
    return store.events.latest(1, run.id, key, ("progress",)) if run else []


def _progress(before: Mapping[str, Progress], events: Iterable[Event]) -> Mapping[str, Progress]:
    found = dict(before)
    for event in events:
        if event.task_key is None:
            continue
        if event.kind == "progress":
            data = event.data if isinstance(event.data, Mapping) else {}
            found[event.task_key] = Progress(str(data.get("text", "")), _figure(data, "done"), _figure(data, "total"))
        elif event.kind.startswith("task."):
            found.pop(event.task_key, None)
    return found


def _figure(data: Mapping[str, object], name: str) -> float | None:
    value = data.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _with_facts(reading: Reading, store: Store, *, measured_anew: bool = False) -> Reading:
    """The newest word on every host, and everything that this run measured or took over from the run that did."""
    new = store.facts.newest(HOST_FACTS, reading.fact_id)
    known = () if measured_anew else reading.measured
    from_id = 0 if measured_anew else reading.fact_id
    measured = (*known, *(store.facts.of_run(reading.run.id, RUN_FACTS, from_id) if reading.run else ()))
    if not new and measured == reading.measured:
        return reading
    return replace(
        reading,
        facts={**reading.facts, **{(fact.kind, fact.key, fact.host): fact for fact in new}},
        measured=measured,
        fact_id=max((reading.fact_id, *(fact.id for fact in (*new, *measured)))),
    )


def _changed_kinds(before: Reading, after: Reading) -> frozenset[str]:
    if after.facts is before.facts and after.measured is before.measured:
        return frozenset()
    changed = {key[0] for key, fact in after.facts.items() if before.facts.get(key) is not fact}
    was, now = ({fact.id: fact.kind for fact in reading.measured} for reading in (before, after))
    return frozenset(changed | {kind for number, kind in (was | now).items() if (number in was) != (number in now)})


def _held(reading: Reading) -> tuple[int, str | None] | None:
    return (reading.lease.token, reading.lease.run_id) if reading.lease else None


def _process_gone(store: Store, reading: Reading) -> bool:
    """Whether the process that should be working on the run is certainly not there any more."""
    run = reading.run
    if run is None or not run.state.active:
        return False
    name = ProcessName.from_text(run.process)
    alive = name.alive() if name else None
    if alive is not None:
        return not alive
    ours = reading.lease if reading.lease and reading.lease.run_id == run.id else None
    return ours is not None and store.leases.expired(ours)


def pick_run(store: Store, run_id: str | None, host: str | None = None) -> str | None:
    """The run to show: the named one, else one that is being worked on, else the newest; None in an empty store."""
    if run_id:
        return store.runs.get(run_id).id
    runs = store.runs.list(host=host)
    active = [run for run in runs if run.state.active]
    return (active or runs)[0].id if runs else None


def vanished(error: Exception) -> str:
    """One sentence for the banner when the store cannot be read now."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, OrchestrateError) else f"the store cannot be read ({text})"
