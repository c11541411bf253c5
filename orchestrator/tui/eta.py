"""How long the rest of a run will take, from how long its tasks took in earlier runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.graph.model import State
from orchestrator.store.records import RunRecord, TaskRecord
from orchestrator.store.store import Store
from orchestrator.tui.model import Reading

EARLIER_RUNS = 5
_LEFT = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)


@dataclass(frozen=True)
class Durations:
    """Median seconds of each task over `runs` earlier runs of the same graph."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0


def earlier_durations(store: Store, run: RunRecord) -> Durations:
    """From the newest runs of the same graph, those on the same host before others. Only time that was really spent."""
    known = [item for item in store.runs.list(graph=run.graph, limit=50) if item.id != run.id]
    chosen = sorted(known, key=lambda item: item.host != run.host)[:EARLIER_RUNS]
    samples: dict[str, list[float]] = {}
    for earlier in chosen:
        for task in store.tasks.list(earlier.id):
            if task.state is State.COMPLETED and task.duration_s is not None:
                samples.setdefault(task.key, []).append(task.duration_s)
    return Durations({key: statistics.median(values) for key, values in samples.items()}, len(chosen))


def seconds_left(reading: Reading, durations: Durations, now: float) -> float | None:
    """The longest chain of what is left, at least the time that the changes need one by one; None without history."""
    if not durations.seconds or not reading.tasks:
        return None
    left = {task.key: _rest(task, durations, now) for task in reading.tasks.values() if task.state in _LEFT}
    ends: dict[str, float] = {}
    for key in _in_order(reading.tasks):
        before = max((ends.get(name, 0.0) for name in reading.tasks[key].depends_on), default=0.0)
        ends[key] = before + left.get(key, 0.0)
    one_by_one = sum(seconds for key, seconds in left.items() if reading.tasks[key].changes_host)
    return max(max(ends.values(), default=0.0), one_by_one)


def _rest(task: TaskRecord, durations: Durations, now: float) -> float:
    expected = durations.seconds.get(task.key, 0.0)
    if task.state is State.IN_PROGRESS and task.started_at is not None:
        return max(0.0, expected - (now - task.started_at))
    return expected


def _in_order(tasks: Mapping[str, TaskRecord]) -> list[str]:
    """Keys so that dependencies come first; a graph in the store has no cycles."""
    order: list[str] = []
    seen: set[str] = set()
    stack = [(key, False) for key in reversed(list(tasks))]
    while stack:
        key, entered = stack.pop()
        if entered:
            order.append(key)
        elif key not in seen and key in tasks:
            seen.add(key)
            stack.append((key, True))
            stack.extend((name, False) for name in tasks[key].depends_on)
    return order
