"""One attempt of one task: claim, look, announce, apply, record, prove. Each step is one transaction."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from orchestrator.errors import ExitCode, OrchestrateError, UsageError, one_line
from orchestrator.graph.context import Context, TimedOut
from orchestrator.graph.fingerprint import Basis
from orchestrator.graph.model import Cancelled, Evidence, Outcome, Probe, State, TaskSpec
from orchestrator.graph.reuse import Candidate, basis_of, find_candidate
from orchestrator.graph.session import RunSession
from orchestrator.store.jsontext import NotJsonError
from orchestrator.store.process import who
from orchestrator.store.records import TaskRecord
from orchestrator.store.tasks import StaleTask
from orchestrator.transport.base import ConnectionLost

PROBING, APPLYING, APPLIED = "probing", "applying", "applied"


class End(Enum):
    """How an attempt ended, for the scheduler."""

    DONE = auto()
    FAILED = auto()
    UNKNOWN = auto()
    INTERRUPTED = auto()
    GIVEN_UP = auto()


@dataclass(frozen=True)
class AttemptResult:
    key: str
    end: End
    error: BaseException | None = None


class TaskFailed(OrchestrateError):
    """A task raised something that is not one of our errors; the sentence names the task and the error."""


def as_our_error(key: str, error: BaseException) -> BaseException:
    """The error that a run ends with: a task's own exception gets a sentence that names the task."""
    if isinstance(error, NotJsonError):
        return TaskFailed(f"task {key}: {error}")
    if isinstance(error, OrchestrateError):
        return error
    if isinstance(error, TimedOut):
        return TaskFailed(str(error))
    said = f": {one_line(error)}" if str(error) else ""
    wrapped = TaskFailed(f"task {key} failed with {type(error).__name__}{said}")
    wrapped.__cause__ = error
    return wrapped


class Attempt:
    """Runs a task once. `forced` leaves earlier results aside."""

    def __init__(self, session: RunSession, spec: TaskSpec, forced: bool = False) -> None:
        self.spec = spec
        self.session = session
        self.context = Context(session, spec)
        self.started = time.monotonic()
        self.record: TaskRecord = session.store.tasks.get(session.run_id, spec.key)
        self._applied_before = self.record.step == APPLIED and self.record.output is not None
        self._not_skipped = self.record.why_not_skipped
        self._forced = forced
        self._candidate: Candidate | None = None

    def run(self) -> AttemptResult:
        """Never raises: whatever happens is written to the store and returned."""
        try:
            self._claim()
            self._steps()
            return AttemptResult(self.spec.key, End.DONE)
        except StaleTask as error:
            return AttemptResult(self.spec.key, End.GIVEN_UP, error)
        except BaseException as error:
            try:
                return self._ended_by(error)
            except StaleTask as stale:
                return AttemptResult(self.spec.key, End.GIVEN_UP, stale)
            except BaseException as second:  # the store itself fails: the run ends, a resume probes the task
                return AttemptResult(self.spec.key, End.FAILED, second)

    def give_up(self) -> AttemptResult:
        """Called by the scheduler when the hard time-out passed; the thread may still hang in a call."""
        self.context.abandon()
        self.context.drop_host()
        error = TimedOut(f"it took longer than {self.spec.timeout_s:g} s and did not stop when told to")
        store = self.session.store
        with self.session.record() as event:
            # Not kept as self.record: the hanging thread must find its own version outdated, should it come back.
            task = store.tasks.get(self.session.run_id, self.spec.key)
            if task.state is not State.IN_PROGRESS:
                return AttemptResult(self.spec.key, End.GIVEN_UP, error)
            state = State.UNKNOWN if task.step in (APPLYING, APPLIED) else State.FAILED
            store.tasks.change(
                task, state, reason=str(error), claimed_by=None, finished_at=self._now(), duration_s=self._duration()
            )
            event(f"task.{state}", self.spec.key, reason=str(error), step=task.step)
        return AttemptResult(self.spec.key, End.FAILED, TaskFailed(f"task {self.spec.key}: {error}"))

    # The way forward

    def _claim(self) -> None:
        with self.session.record() as event:
            self._change(
                State.IN_PROGRESS, step=PROBING, attempts=self.record.attempts + 1, claimed_by=who(), reason="",
                started_at=self._now(), finished_at=None, duration_s=None,
            )  # fmt: skip
            event("task.claimed", self.spec.key, attempt=self.record.attempts)

    def _steps(self) -> None:
        if self._skipped_by_condition():
            return
        basis = basis_of(self.session, self.spec, self.context)
        self._candidate = None if self._forced else find_candidate(self.session, self.spec, self.record, basis)
        self.context.earlier = self._candidate.output if self._candidate and self._candidate.usable else None
        probe = self._probe(basis)
        if probe.satisfied and self._candidate and self._candidate.usable:
            self._reuse(self._candidate, probe)
            return
        if self.spec.needs_lock:
            self.context.begin_change()
        if not probe.satisfied:
            self._apply()
        elif not self._applied_before:
            self._record_output(dict(probe.facts), "task.found")
        self._verify(probe)

    def _skipped_by_condition(self) -> bool:
        reason = self.spec.condition(self.context) if self.spec.condition else None
        if reason is None:
            return False
        if self._not_skipped:
            raise UsageError(f"{self._not_skipped}, and now its condition says: {reason}")
        reason = self.session.masked(reason)
        times = {"finished_at": self._now(), "duration_s": self._duration()}
        with self.session.record() as event:
            self._change(State.SKIPPED, step="", reason=reason, output_json=None, **times)
            event("task.skipped", self.spec.key, reason=reason)
        self.session.outputs.pop(self.spec.key, None)  # of an attempt before it was reopened
        return True

    def _probe(self, basis: Basis) -> Probe:
        """Looks, and writes what was seen together with the fingerprint."""
        probe = self.spec.action.probe(self.context)
        if not isinstance(probe, Probe):
            raise TaskFailed(f"task {self.spec.key}: its probe gave {type(probe).__name__}, it must give a Probe")
        with self.session.record() as event:
            self._change(State.IN_PROGRESS, fingerprint=basis.fingerprint, inputs_json=basis.to_json())
            event("task.probed", self.spec.key, satisfied=probe.satisfied, reason=probe.reason, facts=dict(probe.facts))
            self._contradict(event, probe)
        return probe

    def _contradict(self, event: Any, probe: Probe) -> None:
        """A change of an earlier run that is no longer there: its proof says so from now on.

        Only for changes: a task that merely looks says "not satisfied" in every run.
        """
        if probe.satisfied or not self.spec.changes_host or self._candidate is None or not self._candidate.usable:
            return
        proof = self._candidate.evidence
        reason = f"run {self.session.run_id} found: {self.session.masked(probe.reason)}"
        self.session.store.evidence.contradict(proof.id, reason)
        event("evidence.contradicted", self.spec.key, evidence=proof.id, proved_by=proof.proved_by_run, reason=reason)

    def _apply(self) -> None:
        self.context.check_cancelled()
        with self.session.record() as event:
            self.session.check_lease()
            self._change(State.IN_PROGRESS, step=APPLYING, began=True, output_json=None)
            event("task.applying", self.spec.key, why=self._why_not_reused())
        try:
            output = self.spec.action.apply(self.context)
        except TimedOut:
            raise
        except Cancelled as error:
            output = self._settle(error)
        self._record_output(output, "task.applied")

    def _settle(self, error: Cancelled) -> Mapping[str, Any]:
        """The run was asked to stop in the middle of apply: look whether the effect is complete all the same."""
        self.context = Context(self.session, self.spec, obey_stop=False)
        probe = self.spec.action.probe(self.context)
        if not probe.satisfied:
            raise error
        return dict(probe.facts)

    def _record_output(self, output: Mapping[str, Any], kind: str) -> None:
        if not isinstance(output, Mapping):
            given = type(output).__name__
            raise TaskFailed(f"task {self.spec.key}: its apply gave {given}, it must give a JSON object")
        kept = self.session.masked(dict(output))
        with self.session.record() as event:
            self._change(State.IN_PROGRESS, step=APPLIED, output_json=kept)
            event(kind, self.spec.key, output=kept)
        self.session.outputs[self.spec.key] = kept

    def _verify(self, probe: Probe) -> None:
        evidence = self.spec.action.verify(self.context)
        if not isinstance(evidence, Evidence):
            raise TaskFailed(f"task {self.spec.key}: its verify gave no evidence, so it does not count as completed")
        evidence = Evidence(
            self.session.masked(evidence.checked), self.session.masked(evidence.output),
            self.session.masked(dict(evidence.data)), evidence.expires_after_s, self._checked(evidence.outcome),
        )  # fmt: skip
        with self.session.record() as event:
            stored = self.session.store.evidence.add(self.session.run_id, self.spec.key, evidence)
            reason = f"already so: {probe.reason}" if probe.satisfied else ""
            self._complete(stored.id, reason)
            event(
                "task.completed", self.spec.key, evidence=stored.id, checked=evidence.checked,
                output=evidence.output, sha256=stored.sha256, reason=reason,
            )  # fmt: skip
            self._conclude(event, evidence)

    def _checked(self, outcome: Outcome | None) -> Outcome | None:
        """The outcome without secrets; it may only name exit codes and tasks that there are."""
        if outcome is None:
            return None
        unknown = [key for key in outcome.skip if key not in self.session.plan.specs]
        if outcome.exit_code not in set(ExitCode) or unknown:
            what = f"skips {', '.join(unknown)}, which the graph has not" if unknown else f"has {outcome.exit_code}"
            raise TaskFailed(
                f"task {self.spec.key}: its outcome {what}; name exit codes of the contract and tasks of the graph"
            )
        return Outcome(outcome.exit_code, self.session.masked(outcome.reason), outcome.skip)

    def _reuse(self, candidate: Candidate, probe: Probe) -> None:
        reason = f"reused from run {candidate.evidence.proved_by_run}: same inputs, {probe.reason}"
        with self.session.record() as event:
            stored = self.session.store.evidence.reuse(self.session.run_id, self.spec.key, candidate.evidence)
            self._complete(stored.id, reason, output_json=dict(candidate.output))
            event("task.reused", self.spec.key, evidence=stored.id, reason=reason, output=dict(candidate.output))
            self._conclude(event, stored)

    def _complete(self, evidence_id: int, reason: str, **columns: Any) -> None:
        self._change(
            State.COMPLETED, step="", evidence_id=evidence_id, reason=self.session.masked(reason),
            finished_at=self._now(), duration_s=self._duration(), claimed_by=None, **columns,
        )  # fmt: skip
        self.session.outputs[self.spec.key] = self.record.output or {}

    def _conclude(self, event: Any, evidence: Any) -> None:
        outcome = evidence.outcome
        if outcome is not None:
            self.session.store.runs.set_outcome(self.session.run_id, outcome)
            event("run.outcome", self.spec.key, exit_code=int(outcome.exit_code), reason=outcome.reason,
                  skip=list(outcome.skip))  # fmt: skip
            self.session.outcome = outcome

    # The ways out

    def _ended_by(self, error: BaseException) -> AttemptResult:
        self._forget_unwritten()
        in_effect = self.record.step in (APPLYING, APPLIED)
        if isinstance(error, ConnectionLost):
            self.context.drop_host()
            if in_effect:
                return self._leave(State.UNKNOWN, End.UNKNOWN, error)
        if isinstance(error, Cancelled) and not isinstance(error, TimedOut) and self.session.stop.is_set():
            return self._leave(State.PENDING, End.INTERRUPTED, error)
        if isinstance(error, TimedOut) and self.record.step == APPLYING:
            return self._leave(State.UNKNOWN, End.UNKNOWN, TaskFailed(str(error)))
        return self._leave(State.FAILED, End.FAILED, as_our_error(self.spec.key, error))

    def _forget_unwritten(self) -> None:
        """After a transaction that failed, the record is ahead of the store."""
        stored = self.session.store.tasks.get(self.session.run_id, self.spec.key)
        if stored.version < self.record.version:
            self.record = stored

    def _leave(self, state: State, end: End, error: BaseException) -> AttemptResult:
        reason = self.session.masked(str(error) or type(error).__name__)
        with self.session.record() as event:
            self._change(state, reason=reason, claimed_by=None, finished_at=self._now(), duration_s=self._duration())
            event(f"task.{state}", self.spec.key, reason=reason, step=self.record.step, traceback=_trace(error))
        return AttemptResult(self.spec.key, end, error)

    def _why_not_reused(self) -> str:
        if self._forced:
            return "forced"
        return self._candidate.why_not if self._candidate else "it has not run before with this graph and host"

    def _change(self, state: State, **columns: Any) -> None:
        self.record = self.session.store.tasks.change(self.record, state, **columns)

    def _now(self) -> float:
        return max(self.session.store.clock(), self.record.started_at or 0.0)

    def _duration(self) -> float:
        return round(time.monotonic() - self.started, 6)


def _trace(error: BaseException) -> str:
    cause = error.__cause__
    return "".join(traceback.format_exception(cause)) if cause is not None else ""
