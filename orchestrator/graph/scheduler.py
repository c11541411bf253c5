"""Runs the ready tasks, as many at once as each host allows, until nothing is left, something failed, or stop."""

from __future__ import annotations

import heapq
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import LockedError, PlanStaleError, StoreError, UsageError
from orchestrator.graph.attempt import Attempt, AttemptResult, End
from orchestrator.graph.model import Priority, State, TaskSpec
from orchestrator.graph.session import RunSession
from orchestrator.store.tasks import StaleTask

DONE_STATES = frozenset({State.COMPLETED, State.SKIPPED})
NOT_SELECTED = "not selected by --only"
_URGENCY = {Priority.HIGH: 0, Priority.MEDIUM: 1, Priority.LOW: 2}
_NEVER_RETRIED = (UsageError, PlanStaleError, LockedError, StoreError, StaleTask)


class SkipRefused(UsageError):
    """Somebody asked to leave out a task that changed the host: a mistake for which nothing is undone."""


@dataclass(frozen=True)
class Limits:
    """How much happens at once, and how patient the scheduler is."""

    changing_per_host: int = 1
    looking_per_host: int = 2
    grace_s: float = 30.0  # between a task's time-out and giving up on its thread
    reconnects: int = 3  # how often an effect whose outcome is unknown is probed again
    reconnect_base_s: float = 1.0


@dataclass
class _Running:
    attempt: Attempt
    give_up_at: float


@dataclass
class Scheduler:
    """Walks the graph. `selected` are the keys that may run; the others are skipped with the reason given for them."""

    session: RunSession
    limits: Limits
    skip: Mapping[str, str]
    forced: frozenset[str] = frozenset()
    failure: BaseException | None = None
    failed_key: str = ""
    _results: queue.SimpleQueue[AttemptResult] = field(default_factory=queue.SimpleQueue)
    _ready: dict[tuple[str, bool], list[tuple[int, int, str]]] = field(default_factory=dict)
    _missing: dict[str, int] = field(default_factory=dict)
    _running: dict[str, _Running] = field(default_factory=dict)
    _busy: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _later: list[tuple[float, str]] = field(default_factory=list)
    _tries: Counter[str] = field(default_factory=Counter)
    _probes: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Returns when nothing runs any more; `failure` then says what went wrong, None if nothing did."""
        self._enter_tasks()
        while True:
            self._start_due()
            if not self._running and not self._waiting():
                return
            try:
                self._finished(self._results.get(timeout=self._patience()))
            except queue.Empty:
                self._give_up_late_ones()

    def _enter_tasks(self) -> None:
        states = self.session.store.tasks.states(self.session.run_id)
        self._position = {key: index for index, key in enumerate(self.session.plan.order)}
        for key in self.session.plan.order:
            spec = self.session.plan.specs[key]
            self._missing[key] = sum(states[needed] not in DONE_STATES for needed in spec.depends_on)
        self._open = {key for key, state in states.items() if state not in DONE_STATES}
        for key in self.session.plan.order:
            if key in self._open and self._missing[key] == 0:
                self._make_ready(key)

    def _make_ready(self, key: str) -> None:
        spec = self.session.plan.specs[key]
        entry = (_URGENCY[spec.priority], self._position[key], key)
        heapq.heappush(self._ready.setdefault(self._lane(spec), []), entry)

    def _lane(self, spec: TaskSpec) -> tuple[str, bool]:
        return spec.host or self.session.default_host, spec.changes_host

    def _stopping(self) -> bool:
        return self.failure is not None or self.session.stop.is_set()

    def _waiting(self) -> bool:
        return not self._stopping() and (bool(self._later) or any(self._ready.values()))

    def _patience(self) -> float:
        """How long to wait for a result before looking at the clock and the stop signal again."""
        if self._later and not self._stopping():
            return min(0.25, max(0.001, self._later[0][0] - time.monotonic()))
        return 0.25

    def _start_due(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            self._make_ready(heapq.heappop(self._later)[1])
        started = True
        while started and not self._stopping():
            started = False
            for lane in list(self._ready):
                while self._ready[lane] and self._busy[lane] < self._capacity(lane) and not self._stopping():
                    self._start(heapq.heappop(self._ready[lane])[2], lane)
                    started = True

    def _capacity(self, lane: tuple[str, bool]) -> int:
        return self.limits.changing_per_host if lane[1] else self.limits.looking_per_host

    def _start(self, key: str, lane: tuple[str, bool]) -> None:
        reason = self._why_skip(key)
        if reason is not None:
            self._skip(key, reason)
            return
        spec = self.session.plan.specs[key]
        attempt = Attempt(self.session, spec, key in self.forced)
        if attempt.record.state in DONE_STATES:  # a person skipped it meanwhile
            self._done(key)
            return
        give_up_at = time.monotonic() + spec.timeout_s + self.limits.grace_s
        self._running[key] = _Running(attempt, give_up_at)
        self._busy[lane] += 1
        work = threading.Thread(target=self._work, args=(attempt,), name=f"task {key}", daemon=True)
        work.start()

    def _work(self, attempt: Attempt) -> None:
        self._results.put(attempt.run())

    def _why_skip(self, key: str) -> str | None:
        outcome = self.session.outcome
        if outcome is not None and key in outcome.skip:
            return outcome.reason
        return self.skip.get(key)

    def _skip(self, key: str, reason: str) -> None:
        store = self.session.store
        task = store.tasks.get(self.session.run_id, key)
        if task.why_not_skipped and (reason != NOT_SELECTED or task.state is State.UNKNOWN):
            decided = self.session.outcome is not None and key in self.session.outcome.skip
            error = UsageError if decided else SkipRefused
            self.failure, self.failed_key = error(task.why_not_skipped), key
            return
        with self.session.record() as event:
            change = {"reason": self.session.masked(reason), "finished_at": store.clock(), "output_json": None}
            store.tasks.change(task, State.SKIPPED, **change)
            event("task.skipped", key, reason=reason)
        self.session.outputs.pop(key, None)  # of an attempt before it was reopened
        self._done(key)

    def _done(self, key: str) -> None:
        self._open.discard(key)
        for following in self.session.plan.dependants[key]:
            self._missing[following] -= 1
            if self._missing[following] == 0 and following in self._open:
                self._make_ready(following)

    def _finished(self, result: AttemptResult) -> None:
        running = self._running.get(result.key)
        if running is None:
            return  # a thread that was given up came back after all: what it did was refused by the store
        del self._running[result.key]
        spec = self.session.plan.specs[result.key]
        self._busy[self._lane(spec)] -= 1
        if result.end is End.DONE:
            self._done(result.key)
        elif result.end is not End.INTERRUPTED:
            self._retry_or_fail(spec, result)

    def _retry_or_fail(self, spec: TaskSpec, result: AttemptResult) -> None:
        assert result.error is not None
        wait_s = self._retry_wait(spec, result)
        if wait_s is None:
            self._fail(spec.key, result.error)
            return
        with self.session.record() as event:
            task = self.session.store.tasks.get(self.session.run_id, spec.key)
            if task.state is State.FAILED:
                reason = f"again in {wait_s:.1f} s after: {task.reason}"
                task = self.session.store.tasks.change(task, State.PENDING, reason=reason)
            event("task.retry", spec.key, state=task.state, wait_s=round(wait_s, 3), error=str(result.error))
        heapq.heappush(self._later, (time.monotonic() + wait_s, spec.key))

    def _retry_wait(self, spec: TaskSpec, result: AttemptResult) -> float | None:
        """Seconds until the next attempt, None if there is none."""
        if self._stopping() or isinstance(result.error, _NEVER_RETRIED):
            return None
        if result.end is End.UNKNOWN:
            self._probes[spec.key] += 1
            if self._probes[spec.key] > self.limits.reconnects:
                return None
            return _back_off(self.limits.reconnect_base_s, 30.0, self._probes[spec.key])
        self._tries[spec.key] += 1
        if self._tries[spec.key] >= spec.retry.attempts:
            return None
        return _back_off(spec.retry.base_s, spec.retry.max_s, self._tries[spec.key])

    def _fail(self, key: str, error: BaseException) -> None:
        if self.failure is None:
            self.failure, self.failed_key = error, key

    def _give_up_late_ones(self) -> None:
        now = time.monotonic()
        for key, running in list(self._running.items()):
            if now < running.give_up_at:
                continue
            result = running.attempt.give_up()
            if result.end is End.FAILED and result.error is not None:
                del self._running[key]
                self._busy[self._lane(running.attempt.spec)] -= 1
                self._fail(key, result.error)


def _back_off(base_s: float, max_s: float, attempt: int, draw: Callable[[], float] = random.random) -> float:
    """Doubles with every attempt up to max_s; the draw takes off up to half, so that clients spread out."""
    full = min(max_s, base_s * 2.0 ** min(attempt - 1, 32))
    return full * (1.0 - 0.5 * draw())
