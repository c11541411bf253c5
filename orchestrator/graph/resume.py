"""Brings the tasks of an earlier attempt at a run into a state from which the scheduler can go on."""

from __future__ import annotations

from orchestrator.errors import PlanStaleError
from orchestrator.graph.context import Context
from orchestrator.graph.model import Action, State
from orchestrator.graph.scheduler import NOT_SELECTED
from orchestrator.graph.session import RunSession
from orchestrator.store.records import RunRecord, TaskRecord

_AGAIN = frozenset({State.FAILED, State.CANCELLED, State.ROLLED_BACK})


def check_definition(session: RunSession, run: RunRecord) -> None:
    """Refuses to continue with a graph of another shape than the run began with."""
    if run.definition == session.plan.definition:
        return
    old = {task.key for task in session.store.tasks.list(run.id)}
    new = set(session.plan.specs)
    added, removed = sorted(new - old), sorted(old - new)
    changes = [f"{word} {', '.join(keys)}" for word, keys in (("added", added), ("removed", removed)) if keys]
    detail = "; ".join(changes) or "other dependencies"
    raise PlanStaleError(f"graph {run.graph} changed since run {run.id} began ({detail}): start a new run")


def mark_unconfirmed(session: RunSession) -> None:
    """What was in progress when the process ended is unknown: it is probed before anything else happens to it."""
    for task in session.store.tasks.list(session.run_id):
        if task.state is State.IN_PROGRESS:
            reason = f"the process ended while the task was at step {task.step}; what is true is looked up first"
            with session.record() as event:
                session.store.tasks.change(task, State.UNKNOWN, reason=reason, claimed_by=None)
                event("task.unknown", task.key, reason=reason, step=task.step)


def reopen(session: RunSession) -> None:
    """Tasks that failed, were undone, or whose proof no longer holds become pending again, and what follows them."""
    tasks = session.store.tasks.list(session.run_id)
    reasons = {task.key: reason for task in tasks if (reason := _why_again(session, task))}
    for key in session.plan.following(reasons):
        task = next(task for task in tasks if task.key == key)
        if task.state is State.COMPLETED:
            reasons[key] = "a task that it depends on runs again"
    for task in tasks:
        if task.key in reasons:
            with session.record() as event:
                session.store.tasks.change(task, State.PENDING, reason=reasons[task.key])
                event("task.reopened", task.key, reason=reasons[task.key], was=task.state)


def restore_outcome(session: RunSession) -> None:
    """The outcome that a still completed task gave, if any."""
    session.outcome = None
    for task in session.store.tasks.list(session.run_id):
        if task.state is State.COMPLETED and task.evidence_id is not None:
            session.outcome = session.store.evidence.get(task.evidence_id).outcome or session.outcome
    session.store.runs.set_outcome(session.run_id, session.outcome)


def _why_again(session: RunSession, task: TaskRecord) -> str:
    if task.state in _AGAIN:
        return f"runs again after: {task.reason or task.state}"
    if task.state is State.SKIPPED and task.reason == NOT_SELECTED:
        return "selected now"
    if task.state is not State.COMPLETED or task.evidence_id is None:
        return ""
    evidence = session.store.evidence.get(task.evidence_id)
    if evidence.expired(session.store.clock()):
        return "its evidence expired"
    if evidence.contradicted_reason:
        return f"its evidence was contradicted: {evidence.contradicted_reason}"
    drift = _drift(session, task)
    if drift:
        session.store.evidence.contradict(evidence.id, drift)
        return f"the host drifted: {drift}"
    return ""


def _drift(session: RunSession, task: TaskRecord) -> str:
    """Looks again at a change on which a task that is not done yet builds directly; '' if it still stands."""
    spec = session.plan.specs[task.key]
    if not spec.changes_host or type(spec.action).probe is Action.probe:
        return ""
    states = {record.key: record.state for record in session.store.tasks.list(session.run_id)}
    if all(states[key] in (State.COMPLETED, State.SKIPPED) for key in session.plan.dependants[task.key]):
        return ""
    probe = spec.action.probe(Context(session, spec))
    return "" if probe.satisfied else probe.reason
