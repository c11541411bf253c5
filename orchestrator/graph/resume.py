"""Brings the tasks of an earlier attempt at a run into a state from which the scheduler can go on."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import PlanStaleError
from orchestrator.graph.attempt import as_our_error
from orchestrator.graph.bounded import call_bounded
from orchestrator.graph.context import Context
from orchestrator.graph.model import Action, Cancelled, State
from orchestrator.graph.plan import named
from orchestrator.graph.scheduler import NOT_SELECTED
from orchestrator.graph.session import RunSession
from orchestrator.store.records import EvidenceRecord, RunRecord, TaskRecord

_AGAIN = frozenset({State.FAILED, State.CANCELLED, State.ROLLED_BACK})


def check_definition(session: RunSession, run: RunRecord) -> None:
    """Refuses to continue with a graph of another shape than the run began with."""
    if run.definition == session.plan.definition:
        return
    old = set(session.store.tasks.states(run.id))
    new = set(session.plan.specs)
    added, removed = sorted(new - old), sorted(old - new)
    changes = [f"{word} {named(keys)}" for word, keys in (("added", added), ("removed", removed)) if keys]
    detail = "; ".join(changes) or "other dependencies"
    raise PlanStaleError(f"graph {run.graph} changed since run {run.id} began ({detail}): start a new run")


def mark_unconfirmed(session: RunSession) -> None:
    """What was in progress when the process ended is unknown: it is probed before anything else happens to it."""
    for key, state in session.store.tasks.states(session.run_id).items():
        if state is State.IN_PROGRESS:
            task = session.store.tasks.get(session.run_id, key)
            reason = f"the process ended while the task was at step {task.step}; what is true is looked up first"
            with session.record() as event:
                session.store.tasks.change(task, State.UNKNOWN, reason=reason, claimed_by=None)
                event("task.unknown", task.key, reason=reason, step=task.step)


def reopen(session: RunSession, grace_s: float) -> None:
    """Tasks that failed, were undone, or whose proof no longer holds become pending again, and what follows them.

    The outcome of the run is then that of the tasks that are still completed.
    """
    tasks = {task.key: task for task in session.store.tasks.list(session.run_id)}
    session.load_outputs(tasks.values())
    proofs = {proof.id: proof for proof in session.store.evidence.of_run(session.run_id)}
    again = ((key, _why_again(session, task, tasks, proofs, grace_s)) for key, task in tasks.items())
    reasons = {key: reason for key, reason in again if reason}
    for key in session.plan.following(reasons):
        if tasks[key].state is State.COMPLETED:
            reasons[key] = "a task that it depends on runs again"
    for key in session.plan.order:
        if key in reasons:
            with session.record() as event:
                session.store.tasks.change(tasks[key], State.PENDING, reason=reasons[key])
                event("task.reopened", key, reason=reasons[key], was=tasks[key].state)
    standing = (task for key, task in tasks.items() if task.state is State.COMPLETED and key not in reasons)
    outcomes = (proofs[task.evidence_id].outcome for task in standing if task.evidence_id is not None)
    session.outcome = next((outcome for outcome in outcomes if outcome is not None), None)
    session.store.runs.set_outcome(session.run_id, session.outcome)


def _why_again(
    session: RunSession,
    task: TaskRecord,
    tasks: Mapping[str, TaskRecord],
    proofs: Mapping[int, EvidenceRecord],
    grace_s: float,
) -> str:
    """The reason for which a task has to run again, '' if it has not."""
    if task.state in _AGAIN:
        return f"runs again after: {task.reason or task.state}"
    if task.state is State.SKIPPED and task.reason == NOT_SELECTED:
        return "selected now"
    if task.state is not State.COMPLETED or task.evidence_id is None:
        return ""
    proof = proofs[task.evidence_id]
    if proof.expired(session.store.clock()):
        return "its evidence expired"
    if proof.contradicted_reason:
        return f"its evidence was contradicted: {proof.contradicted_reason}"
    drift = _drift(session, task, tasks, grace_s)
    if drift:
        session.store.evidence.contradict(proof.id, drift)
        return f"the host drifted: {drift}"
    return ""


def _drift(session: RunSession, task: TaskRecord, tasks: Mapping[str, TaskRecord], grace_s: float) -> str:
    """Looks again at a change on which a task that is not done yet builds directly; '' if it still stands."""
    spec = session.plan.specs[task.key]
    if not spec.changes_host or type(spec.action).probe is Action.probe:
        return ""
    if all(tasks[key].state in (State.COMPLETED, State.SKIPPED) for key in session.plan.dependants[task.key]):
        return ""
    try:
        probe = call_bounded(Context(session, spec), spec.action.probe, grace_s)
    except (Exception, Cancelled) as error:
        if isinstance(error, Cancelled) and session.stop.is_set():
            raise
        ours = as_our_error(task.key, error)
        raise ours from ours.__cause__
    return "" if probe.satisfied else str(session.masked(probe.reason))
