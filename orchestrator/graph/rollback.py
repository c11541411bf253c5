"""The way back: undo, newest first, what a run began to change, then prove that the host is as before."""

from __future__ import annotations

from orchestrator.graph.context import Context
from orchestrator.graph.model import Evidence, State, TaskSpec
from orchestrator.graph.session import RunSession
from orchestrator.store.records import RunState, TaskRecord
from orchestrator.transport.base import ConnectionLost

CHECK_KEY = "rollback-check"
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


def roll_back(session: RunSession, reason: str) -> str:
    """Undoes and verifies; returns '' when that is proven, else the sentence that says what is not."""
    with session.record() as event:
        session.store.runs.set_state(session.run_id, RunState.ROLLING_BACK, session.masked(reason))
        event("rollback.started", None, reason=reason, tasks=[task.key for task in to_undo(session)])
    for task in to_undo(session):
        lost = session.stop.reason if session.stop.kind == "lock_lost" else ""
        problem = lost or _undo(session, task)
        if problem:
            return _ended(session, problem)
    return _ended(session, _check(session))


def _undo(session: RunSession, task: TaskRecord) -> str:
    spec = session.plan.specs[task.key]
    with session.record() as event:
        event("task.undoing", task.key)
    problem = _call_undo(session, spec)
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


def _call_undo(session: RunSession, spec: TaskSpec) -> str:
    """Calls undo, again after a lost connection; returns '' or what went wrong."""
    for _ in range(UNDO_TRIES):
        context = Context(session, spec, obey_stop=False)
        try:
            context.begin_change()
            spec.action.undo(context)
            return ""
        except ConnectionLost as error:
            context.drop_host()
            problem = str(error)
        except Exception as error:
            return str(session.masked(str(error) or type(error).__name__))
    return str(session.masked(problem))


def _check(session: RunSession) -> str:
    """Proves the end state with the graph's own check; a graph without one proves nothing."""
    action = session.plan.graph.rollback_check
    if action is None:
        return "this graph has no check that proves the state of the host"
    context = Context(session, TaskSpec(CHECK_KEY, "Prove that the host is as before", "rollback", action), False)
    try:
        evidence = action.verify(context)
    except Exception as error:
        return f"the check after rolling back failed: {session.masked(str(error) or type(error).__name__)}"
    if not isinstance(evidence, Evidence):
        return "the check after rolling back gave no evidence"
    with session.record() as event:
        event("rollback.evidence", None, checked=evidence.checked, output=evidence.output, data=dict(evidence.data))
    return ""


def _ended(session: RunSession, problem: str) -> str:
    with session.record() as event:
        event("rollback.unverified" if problem else "rollback.verified", None, reason=problem)
    return problem
