"""The way back: undo, newest first, what a run began to change, then prove that the host is as before."""

from __future__ import annotations

from orchestrator.errors import one_line
from orchestrator.graph.bounded import call_bounded
from orchestrator.graph.context import Context
from orchestrator.graph.model import Cancelled, Evidence, State, TaskSpec
from orchestrator.graph.session import RunSession
from orchestrator.store.records import RunState, TaskRecord
from orchestrator.transport.base import ConnectionLost

CHECK_KEY = "rollback-check"
CHECK_S = 3600.0
UNDO_TRIES = 3


def to_undo(session: RunSession) -> list[TaskRecord]:
    """The tasks that began to change a host in this run and are not undone yet, the one that began last first.

    In the order of their events, since a clock may have gone backwards between two of them.
    """
    announced = session.store.events.tail(run_id=session.run_id, kinds=("task.applying",), limit=1_000_000)
    since = {event.task_key: event.seq for event in announced}
    begun = [
        task
        for task in session.store.tasks.list(session.run_id)
        if task.began and task.changes_host and task.state is not State.ROLLED_BACK
    ]
    return sorted(begun, key=lambda task: since.get(task.key, 0), reverse=True)


def roll_back(session: RunSession, reason: str, grace_s: float) -> str:
    """Undoes and verifies; returns '' when that is proven, else the sentence that says what is not.

    What does not end `grace_s` after its task's time-out is given up.
    """
    with session.record() as event:
        session.store.runs.set_state(session.run_id, RunState.ROLLING_BACK, session.masked(reason))
        event("rollback.started", None, reason=reason, tasks=[task.key for task in to_undo(session)])
    for task in to_undo(session):
        problem = session.lease_lost() or _undo(session, task, grace_s)
        if problem:
            return _ended(session, problem)
    return _ended(session, _check(session, grace_s))


def _undo(session: RunSession, task: TaskRecord, grace_s: float) -> str:
    spec = session.plan.specs[task.key]
    with session.record() as event:
        event("task.undoing", task.key)
    problem = _call_undo(session, spec, grace_s)
    if problem:
        with session.record() as event:
            event("task.undo_failed", task.key, reason=problem)
        return f"undoing task {task.key} failed: {problem}"
    with session.record() as event:
        task = session.store.tasks.get(session.run_id, task.key)
        if task.state is State.IN_PROGRESS:
            task = session.store.tasks.change(task, State.UNKNOWN)
        if task.evidence_id is not None:
            session.store.evidence.contradict(task.evidence_id, "it was rolled back")
        session.store.tasks.change(
            task, State.ROLLED_BACK, step="", began=False, reason=f"rolled back; before: {task.reason or task.state}"
        )
        event("task.rolled_back", task.key)
    return ""


def _call_undo(session: RunSession, spec: TaskSpec, grace_s: float) -> str:
    """Calls undo, again after a lost connection; returns '' or what went wrong."""

    def undo(context: Context) -> None:
        context.begin_change()
        spec.action.undo(context)

    for _ in range(UNDO_TRIES):
        context = Context(session, spec, obey_stop=False)
        try:
            call_bounded(context, undo, grace_s)
            return ""
        except ConnectionLost as error:
            context.drop_host()
            problem = _said(session, error)
        except (Exception, Cancelled, SystemExit) as error:
            return _said(session, error)
    return problem


def _said(session: RunSession, error: BaseException) -> str:
    return str(session.masked(one_line(error)))


def _check(session: RunSession, grace_s: float) -> str:
    """Proves the end state with the graph's own check; a graph without one proves nothing."""
    action = session.plan.graph.rollback_check
    if action is None:
        return "this graph has no check that proves the state of the host"
    spec = TaskSpec(CHECK_KEY, "Prove that the host is as before", "rollback", action, timeout_s=CHECK_S)
    context = Context(session, spec, obey_stop=False)
    try:
        evidence = call_bounded(context, action.verify, grace_s)
    except (Exception, Cancelled, SystemExit) as error:
        return f"the check after rolling back failed: {_said(session, error)}"
    if not isinstance(evidence, Evidence):
        return "the check after rolling back gave no evidence"
    with session.record() as event:
        event("rollback.evidence", None, checked=evidence.checked, output=evidence.output, data=dict(evidence.data))
    return ""


def _ended(session: RunSession, problem: str) -> str:
    with session.record() as event:
        event("rollback.unverified" if problem else "rollback.verified", None, reason=problem)
    return problem
