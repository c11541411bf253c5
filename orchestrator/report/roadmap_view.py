"""What the roadmap shows, gathered from the store; no text is formatted here beyond figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.bench.summary import ArmSummary
from orchestrator.errors import UsageError
from orchestrator.report.place import report_path
from orchestrator.report.sweeps import MEASURED_IN
from orchestrator.store.records import EvidenceRecord, RunRecord, TaskRecord, moment
from orchestrator.store.store import Store

GRAPH = "deploy-ddtree"
SELF = "roadmap"  # the task that writes this document cannot know its own end
_ARMS = TypeAdapter(list[ArmSummary])
Row = Mapping[str, Any]


@dataclass(frozen=True)
class RoadmapView:
    """One run as the roadmap shows it."""

    host: str
    summary: str
    run: Row
    live: str
    report: str
    verdict: Row
    phases: Sequence[Row]
    knobs: Sequence[Row]
    hooks: Sequence[Row]
    testing: Sequence[str]
    expectations: Sequence[Row]
    budgets: Sequence[Row]
    plot: str | None
    plot_is_final: bool  # of an earlier run, which has ended
    risks: Sequence[Row]
    notes: Sequence[Row]
    todos: Sequence[Row]
    next_steps: Sequence[str]
    arms: Sequence[ArmSummary] = field(default_factory=tuple)
    margin: float = 0.0


def roadmap_view(store: Store, run_id: str | None = None) -> RoadmapView:
    """The newest deployment (or the given run); UsageError when the store has none."""
    run = _run(store, run_id)
    tasks = store.tasks.list(run.id)
    outputs = {task.key: task.output or {} for task in tasks}
    plan_data = _plan(store, run)
    arms = _ARMS.validate_python(outputs.get("benchmark", {}).get("arms", []))
    verdict = _verdict(outputs)
    measured = str(outputs.get("benchmark", {}).get(MEASURED_IN) or run.id)
    return RoadmapView(
        host=run.host,
        summary=_summary(tasks, verdict),
        run={"id": run.id, "graph": run.graph, "started_at": _time(run.created_at)},
        live=_live(store, run),
        report=report_path(Path(), measured).as_posix(),
        verdict=verdict,
        phases=_phases(tasks, {item.id: item for item in store.evidence.of_run(run.id)}),
        knobs=plan_data.get("knobs", []),
        hooks=_hooks(outputs),
        testing=plan_data.get("testing", []),
        expectations=_expectations(plan_data.get("expectations", []), arms, outputs.get("compare", {})),
        budgets=[_budget(arm) for arm in arms],
        plot=f"plots/{measured}.png" if arms else None,
        plot_is_final=measured != run.id,
        risks=outputs.get("map-risks", {}).get("risks", []),
        notes=_notes(store, run, outputs),
        todos=_todos(store),
        next_steps=_next_steps(outputs, verdict),
        arms=arms,
        margin=float(outputs.get("benchmark", {}).get("settings", {}).get("margin", 0.0)),
    )


def _run(store: Store, run_id: str | None) -> RunRecord:
    run = store.runs.get(run_id) if run_id else store.runs.latest(graph=GRAPH) or store.runs.latest()
    if run is None:
        raise UsageError("The store has no run yet; `orchestrate run deploy-ddtree` makes one.")
    return run


def _plan(store: Store, run: RunRecord) -> Mapping[str, Any]:
    """What the run recorded about its own plan, else what the newest run on its host did."""
    own = store.facts.list("roadmap.plan", run.host, run_id=run.id)
    newest = own[-1] if own else store.facts.latest("roadmap.plan", run.host, run.host)
    return newest.data if newest else {}


def _time(seconds: float | None) -> str:
    at = moment(seconds)
    return at.isoformat(timespec="seconds") if at else ""


def _phases(tasks: Sequence[TaskRecord], evidence: Mapping[int, EvidenceRecord]) -> list[Row]:
    phases: dict[str, list[Row]] = {}
    for task in tasks:
        proof = evidence.get(task.evidence_id) if task.evidence_id is not None else None
        why = " – ".join(part for part in (proof.output if proof else "", task.reason) if part)
        own = task.key == SELF
        phases.setdefault(task.phase, []).append(
            {
                "content": task.content,
                "priority": task.priority.value,
                "state": "this document" if own else task.state.value,
                "seconds": "" if own or task.duration_s is None else f"{task.duration_s:.1f} s",
                "why": "" if own else why,
            }
        )
    return [{"name": name, "tasks": rows} for name, rows in phases.items()]


def _verdict(outputs: Mapping[str, Mapping[str, Any]]) -> Row:
    decided = outputs.get("decide") or {}
    if decided:
        return {"sentence": f"{decided['decision']} ({decided['by']}): {decided['why']}", **decided}
    measured = outputs.get("benchmark", {}).get("verdict") or {}
    return {"sentence": f"{measured['decision']}: {measured['reason']}" if measured else "", **measured}


def _summary(tasks: Sequence[TaskRecord], verdict: Row) -> str:
    tasks = [task for task in tasks if task.key != SELF]
    done = sum(task.state.value == "completed" for task in tasks)
    others = [task.key for task in tasks if task.state.value in ("failed", "unknown", "rolled_back")]
    left = f"; needs attention: {', '.join(others)}" if others else ""
    said = verdict["sentence"] or "No verdict yet."
    return f"{done} of {len(tasks)} tasks are completed with evidence{left}. {said}"


def _live(store: Store, run: RunRecord) -> str:
    fact = store.facts.latest("service", run.host, run.host)
    if fact is None:
        return ""
    nodes = f", B={fact.data['nodes']}" if fact.data.get("nodes") else ""
    return f"{fact.data.get('algorithm')}{nodes} at {fact.data.get('url')}"


def _hooks(outputs: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    rows = outputs.get("build-release", {}).get("overrides", [])
    return [
        {
            "target": row.get("target", ""),
            "kind": row.get("kind", ""),
            "why": row.get("why", ""),
            "status": "fits" if row.get("ok") else f"changed: {row.get('detail', '')}",
        }
        for row in rows
    ]


def _budget(arm: ArmSummary) -> Row:
    def figure(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return {
        "nodes": arm.budget,
        "width": arm.budget + 1,
        "accept": figure(arm.tree_tokens_per_step, 2),
        "chain": figure(arm.chain_tokens_per_step or arm.linear_tokens_per_step, 2),
        "ratio": figure(arm.ratio, 3),
        "ci": f"{arm.ci95[0]:.3f}–{arm.ci95[1]:.3f}" if arm.ci95 else "",
        "n": arm.n,
        "valid": f"{arm.n} of {arm.n + arm.invalid_pairs} pairs"
        + (f" ({', '.join(arm.findings)})" if arm.findings else ""),
    }


def _expectations(rows: Sequence[Row], arms: Sequence[ArmSummary], compared: Row) -> list[Row]:
    """The expected figures with what this run measured: `figure` is tokens, speed, best_speed or equal."""
    return [{**row, "measured": _measured(row, arms, compared)} for row in rows]


def _measured(row: Row, arms: Sequence[ArmSummary], compared: Row) -> str:
    if row["figure"] == "equal":
        return f"{compared['equal']} of {compared['prompts']}" if compared else ""
    if row["figure"] == "best_speed":
        best = max((arm for arm in arms if arm.ratio is not None), key=lambda arm: arm.ratio or 0.0, default=None)
        return f"{best.ratio:.3f}x at B={best.budget}" if best else ""
    arm = next((arm for arm in arms if arm.budget == row.get("nodes")), None)
    if arm is None:
        return ""
    chain = arm.chain_tokens_per_step or arm.linear_tokens_per_step
    ratio = arm.ratio if row["figure"] == "speed" else (arm.tree_tokens_per_step or 0.0) / chain if chain else None
    return f"{ratio:.3f}x" if ratio else ""


def _notes(store: Store, run: RunRecord, outputs: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    notes: list[Row] = [
        {"at": _time(note.at), "author": note.author, "kind": note.kind, "task": note.task_key or "", "text": note.text}
        for note in store.notes.list()
    ]
    decided = outputs.get("decide")
    if decided and decided.get("by") == "override":
        text = f"{decided['decision']}: {decided['why']}"
        notes.append(
            {"at": _time(run.created_at), "author": run.started_by, "kind": "decision", "task": "decide", "text": text}
        )
    return notes


def _todos(store: Store) -> list[Row]:
    return [
        {"content": todo.content, "priority": todo.priority.value, "status": todo.status, "owner": todo.owner}
        for todo in store.todos.list()
    ]


def _next_steps(outputs: Mapping[str, Mapping[str, Any]], verdict: Row) -> list[str]:
    decision = verdict.get("decision")
    steps: list[str] = []
    if decision == "adopt":
        steps.append("Watch the live service; `orchestrate rollback` brings the linear one back.")
    elif decision == "inconclusive":
        needed = outputs.get("benchmark", {}).get("verdict", {}).get("pairs_needed")
        pairs = f" with `--set pairs={needed}`" if needed else ""
        steps.append(f"Measure again{pairs}: {verdict.get('why') or verdict.get('reason', '')}")
    elif decision == "keep linear":
        steps.append("Keep the linear service; measure again when model, draft or engine change.")
    elif decision == "invalid":
        steps.append("Mend what made the rows invalid (the report of the run names it), then measure again.")
    if decision is not None:  # what inspection advised before the run is done
        return steps
    advice = outputs.get("recommend", {}).get("recommendation", {})
    return steps + [str(step) for step in advice.get("next_steps", [])]
