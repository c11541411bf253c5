"""What a run would do, found out without changing anything: probes and announced changes, task by task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.errors import OrchestrateError, PlanStaleError, UsageError
from orchestrator.graph.fingerprint import Basis, digest
from orchestrator.graph.model import Change, Probe, TaskSpec
from orchestrator.graph.plan import Plan
from orchestrator.graph.reuse import why_not
from orchestrator.store.records import TaskRecord
from orchestrator.store.store import Store

WOULD_RUN, WOULD_REUSE, ALREADY_SO, OPEN = "would run", "would reuse", "already so", "depends on earlier tasks"


@dataclass(frozen=True)
class PlannedTask:
    """One task of a plan: what would happen to it, why, and what it would change on the host."""

    key: str
    content: str
    priority: str
    phase: str
    state: str
    reason: str
    changes: tuple[Change, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RunPlan:
    """A plan as it is shown and saved; `plan_id` changes whenever anything that it says would change."""

    graph: str
    host: str
    settings: Mapping[str, str]
    tasks: tuple[PlannedTask, ...]
    plan_id: str = field(default="")

    def to_json(self) -> dict[str, Any]:
        return {
            "plan_id": self.plan_id, "graph": self.graph, "host": self.host, "settings": dict(self.settings),
            "tasks": [task.to_json() for task in self.tasks],
        }  # fmt: skip


class PlanningContext:
    """A TaskContext that only looks: results come from earlier runs, nothing is written anywhere."""

    run_id = "plan"

    def __init__(
        self, store: Store, host: Callable[[], Any], settings: Mapping[str, str], outputs: Mapping[str, Any]
    ) -> None:
        self.store = store
        self._host = host
        self.settings = settings
        self._outputs = outputs
        self.earlier: Mapping[str, Any] | None = None

    @property
    def host(self) -> Any:
        return self._host()

    def output(self, task_key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._outputs.get(task_key, {})
        return found

    def log(self, line: str) -> None:
        """Nothing is kept while planning."""

    def metric(self, name: str, value: float, **labels: str) -> None:
        """Nothing is kept while planning."""

    def fact(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        """Nothing is kept while planning."""

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Nothing is shown while planning."""

    def artifact(self, name: str, content: bytes | str) -> str:
        raise OrchestrateError(f"a probe tried to keep {name}; probes only look.")

    def check_cancelled(self) -> None:
        """A plan is short and is stopped with Ctrl-C."""


def make_plan(
    store: Store, plan: Plan, host_name: str, host: Callable[[], Any], settings: Mapping[str, str]
) -> RunPlan:
    """Probe every task in order. Errors of the host itself are raised; those of a probe become its reason."""
    outputs: dict[str, Any] = {}
    tasks = []
    for key in plan.order:
        spec = plan.specs[key]
        record = store.tasks.earlier_completed(plan.graph.name, host_name, key, "")
        context = PlanningContext(store, host, settings, outputs)
        tasks.append(_planned(store, plan, spec, record, context, outputs))
        if record is not None and record.output is not None:
            outputs[key] = record.output
    body = [[t.key, t.state, t.reason, [asdict(change) for change in t.changes]] for t in tasks]
    plan_id = digest([plan.definition, host_name, dict(settings), body])
    return RunPlan(plan.graph.name, host_name, dict(settings), tuple(tasks), plan_id)


def _planned(
    store: Store,
    plan: Plan,
    spec: TaskSpec,
    record: TaskRecord | None,
    ctx: PlanningContext,
    outputs: Mapping[str, Any],
) -> PlannedTask:
    try:
        refused = _refused(store, plan, spec, record, ctx, outputs)
        ctx.earlier = record.output if record is not None and not refused else None
        probe = spec.action.probe(ctx)
        changes = () if probe.satisfied else tuple(spec.action.changes(ctx))
        state, reason = _state(probe, record, refused)
    except UsageError:
        raise
    except (OrchestrateError, KeyError, LookupError) as error:
        if isinstance(error, OrchestrateError) and not record and not spec.depends_on:
            raise
        state, reason, changes = OPEN, f"not known before {', '.join(spec.depends_on) or 'it runs'}: {error}", ()
    return PlannedTask(spec.key, spec.content, spec.priority.value, spec.phase, state, reason, changes)


def _refused(
    store: Store,
    plan: Plan,
    spec: TaskSpec,
    record: TaskRecord | None,
    ctx: PlanningContext,
    outputs: Mapping[str, Any],
) -> str:
    if record is None or record.evidence_id is None:
        return "it has not run before with this graph and host"
    results = {
        key: digest(dict(plan.specs[key].action.identity(outputs[key]))) if key in outputs else "skipped"
        for key in spec.depends_on
    }
    basis = Basis(dict(spec.action.inputs(ctx)), results)
    return why_not(record, store.evidence.get(record.evidence_id), basis, store.clock())


def _state(probe: Probe, record: TaskRecord | None, refused: str) -> tuple[str, str]:
    if probe.satisfied and record is not None and not refused:
        return WOULD_REUSE, probe.reason
    if probe.satisfied:
        return ALREADY_SO, probe.reason
    return WOULD_RUN, probe.reason if refused.startswith("it has not run") or not refused else refused


def require_same(saved: Mapping[str, Any], now: RunPlan) -> None:
    """Raises PlanStaleError that names the first task which would now go differently than the saved plan says."""
    if saved.get("plan_id") == now.plan_id:
        return
    before = {str(task["key"]): task for task in saved.get("tasks", [])}
    for task in now.tasks:
        old = before.get(task.key)
        if old is None or (old["state"], old["reason"]) != (task.state, task.reason):
            was = f"{old['state']} ({old['reason']})" if old else "not in the plan"
            raise PlanStaleError(
                f"The plan is stale: task {task.key} was {was}, now it {task.state} ({task.reason}); make a new plan."
            )
    raise PlanStaleError("The plan is stale: settings, graph or announced changes differ; make a new plan.")


def render(plan: RunPlan) -> Sequence[tuple[str, str, str, str]]:
    """Rows of a table: key, state, reason, changes in words."""
    return [
        (t.key, t.state, t.reason, "; ".join(f"{c.kind} {c.target}: {c.detail}" for c in t.changes)) for t in plan.tasks
    ]
