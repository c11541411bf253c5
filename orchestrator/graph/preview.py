"""`plan`: what a run would do now, task by task, looked up on the host without changing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from orchestrator.errors import PlanStaleError, UsageError
from orchestrator.graph.context import Context
from orchestrator.graph.fingerprint import digest
from orchestrator.graph.model import Cancelled, Change, GraphSpec, Probe, TaskSpec
from orchestrator.graph.plan import Plan
from orchestrator.graph.reuse import basis_of, why_not
from orchestrator.graph.session import RunSession, SessionFactory
from orchestrator.store.jsontext import Mask
from orchestrator.store.store import Store
from orchestrator.transport.base import HostUnreachable


@dataclass(frozen=True)
class PlannedTask:
    """`action` is reuse, confirm (already so), run, or later (its inputs are only known once others ran)."""

    key: str
    content: str
    priority: str
    action: str
    reason: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Preview:
    """`plan_id` is the same as long as graph, host and inputs are; a run can be held to it."""

    plan_id: str
    graph: str
    host: str
    tasks: tuple[PlannedTask, ...]


class _LookContext(Context):
    """Tasks may look around but leave no trace in the store."""

    def log(self, line: str) -> None: ...

    def metric(self, name: str, value: float, **labels: str) -> None: ...

    def fact(self, kind: str, key: str, data: Mapping[str, Any]) -> None: ...

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None: ...

    def artifact(self, name: str, content: bytes | str) -> str:
        return ""


def preview(
    store: Store,
    graph: GraphSpec,
    session_factory: SessionFactory,
    *,
    host: str,
    settings: Mapping[str, str] | None = None,
    mask: Mask | None = None,
) -> Preview:
    """Probes every task that can be probed now.

    Raises HostUnreachable when the host cannot be looked at, UsageError when a setting does not fit what is there.
    """
    plan = Plan(graph)
    session = RunSession(store, plan, "", host, dict(settings or {}), session_factory, mask, None)
    fresh: set[str] = set()
    planned: dict[str, PlannedTask] = {}
    try:
        for key in plan.order:
            planned[key] = _planned(session, plan.specs[key], fresh)
            if planned[key].action in ("run", "later"):
                fresh.add(key)
    finally:
        session.close()
    tasks = tuple(planned[spec.key] for spec in graph.tasks)
    shape = [
        [task.key, task.action, [[item.kind, item.target, item.detail, item.diff] for item in task.changes]]
        for task in tasks
    ]
    return Preview("p" + digest([plan.definition, host, dict(session.settings), shape])[:12], graph.name, host, tasks)


def check_plan(agreed: Preview, now: Preview) -> None:
    """Raises PlanStaleError naming the first task for which `now` is not what was agreed on."""
    if agreed.plan_id == now.plan_id:
        return
    before = {task.key: task for task in agreed.tasks}
    for task in now.tasks:
        old = before.get(task.key)
        if old is None or (old.action, old.changes) != (task.action, task.changes):
            was = "not in the plan" if old is None else f"{old.action} ({old.reason})"
            raise PlanStaleError(
                f"the plan no longer fits: task {task.key} was {was}, now {task.action} ({task.reason}); plan again"
            )
    raise PlanStaleError("the plan no longer fits: its host or settings are others; plan again")


def _planned(session: RunSession, spec: TaskSpec, fresh: set[str]) -> PlannedTask:
    context = _LookContext(session, spec)
    waits_for = [key for key in spec.depends_on if key in fresh]
    try:
        action, reason = _action(session, spec, context)
        changes = tuple(spec.action.changes(context)) if action == "run" else ()
    except HostUnreachable:
        raise
    except (Exception, Cancelled) as error:
        if not waits_for and isinstance(error, UsageError):
            raise  # what was asked for is wrong: no run of this plan could do it
        if not waits_for:
            return _task(session, spec, "run", f"it could not be looked at yet: {error}", ())
        action, reason, changes = "later", f"known once {', '.join(waits_for)} ran", ()
    if waits_for and action in ("reuse", "confirm"):
        action, reason = "later", f"it depends on {', '.join(waits_for)}, which would run"
    return _task(session, spec, action, reason, changes)


def _task(session: RunSession, spec: TaskSpec, action: str, reason: str, changes: tuple[Change, ...]) -> PlannedTask:
    shown = tuple(Change(*session.masked(astuple(change))) for change in changes)
    return PlannedTask(spec.key, spec.content, spec.priority, action, session.masked(reason), shown)


def _action(session: RunSession, spec: TaskSpec, context: _LookContext) -> tuple[str, str]:
    store = session.store
    earlier = store.tasks.earlier_completed(session.plan.graph.name, session.default_host, spec.key, "")
    basis = basis_of(session, spec, context)
    refused = "it has not run before with this graph and host"
    if earlier is not None and earlier.evidence_id is not None:
        evidence = store.evidence.get(earlier.evidence_id)
        refused = why_not(earlier, evidence, basis, store.clock())
        if not refused:
            context.earlier = earlier.output or {}
    probe = spec.action.probe(context)
    _keep_output(session, spec, earlier.output if earlier else None, probe)
    if probe.satisfied and not refused and earlier is not None:
        return "reuse", f"run {earlier.run_id} did it with the same inputs, {probe.reason}"
    if probe.satisfied:
        return "confirm", f"already so: {probe.reason}"
    return "run", refused or probe.reason


def _keep_output(session: RunSession, spec: TaskSpec, earlier: Mapping[str, Any] | None, probe: Probe) -> None:
    """What later tasks would read: the result of the earlier run, or what the probe saw."""
    if earlier is not None:
        session.outputs[spec.key] = earlier
    elif probe.satisfied:
        session.outputs[spec.key] = dict(probe.facts)
