"""Why a task would run, would not run, or cannot run yet, from what the store knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.graph.fingerprint import Basis, InputChange, differences
from orchestrator.graph.model import State
from orchestrator.store.records import EvidenceRecord, RunRecord, TaskRecord, moment
from orchestrator.store.runs import process_gone
from orchestrator.store.store import Store

_DONE = (State.COMPLETED, State.SKIPPED)


@dataclass(frozen=True)
class Reason:
    """One reason; `kind` is a fixed word for programs, `text` a sentence for people."""

    kind: str
    text: str


@dataclass(frozen=True)
class Explanation:
    """`verdict` is what the next resume does with the task: done, runs, probes first, waits, or skipped."""

    run_id: str
    key: str
    state: State
    verdict: str
    reasons: tuple[Reason, ...]
    inputs_changed: tuple[InputChange, ...]
    facts_before: Mapping[str, Any]
    facts_now: Mapping[str, Any]
    evidence: EvidenceRecord | None


def explain(store: Store, run_id: str, key: str) -> Explanation:
    """Explains a task of a run; compares with the run before in which the task was completed."""
    with store.snapshot():
        run = store.runs.get(run_id)
        task = store.tasks.get(run.id, key)
        tasks = {item.key: item for item in store.tasks.list(run.id)}
        evidence = store.evidence.get(task.evidence_id) if task.evidence_id is not None else None
        before = store.tasks.earlier_completed(run.graph, run.host, key, run.id)
        facts_now = _said(store, run.id, key, "task.probed").get("facts", {})
        facts_before = _said(store, before.run_id, key, "task.probed").get("facts", {}) if before else {}
        looked = _looked(store, run.id, task)
    verdict, reasons = _verdict(run, task, tasks, evidence, store.clock())
    return Explanation(
        run.id, key, task.state, verdict,
        (*reasons, *looked, *_first_or_again(task, before, evidence), *_run_reasons(run, task)),
        _changed(task, before), facts_before, facts_now, evidence,
    )  # fmt: skip


def _verdict(
    run: RunRecord, task: TaskRecord, tasks: Mapping[str, TaskRecord], evidence: EvidenceRecord | None, now: float
) -> tuple[str, list[Reason]]:
    said = [Reason("recorded", task.reason)] if task.reason else []
    if task.state is State.SKIPPED:
        return "skipped", said
    if task.state is State.COMPLETED and evidence is not None:
        return _completed(evidence, said, now)
    if task.state is State.UNKNOWN:
        return "probes first", [*said, Reason("unknown", "its effect was not confirmed, so what is true is looked up")]
    if task.state is State.IN_PROGRESS and process_gone(run):
        text = f"its process ended at step {task.step}, so the next resume looks up what is true"
        return "probes first", [Reason("unknown", text)]
    if task.state is State.IN_PROGRESS:
        return "in progress", [Reason("claimed", f"{task.claimed_by} works on it, step {task.step}")]
    waiting = [key for key in task.depends_on if tasks[key].state not in _DONE]
    if waiting:
        return "waits", [
            *said,
            *(Reason("blocked", f"it waits for {key}, which is {tasks[key].state}") for key in waiting),
        ]
    return "runs", said


def _completed(evidence: EvidenceRecord, said: list[Reason], now: float) -> tuple[str, list[Reason]]:
    if evidence.contradicted_reason:
        text = f"its evidence was contradicted: {evidence.contradicted_reason}"
        return "runs", [*said, Reason("contradicted", text)]
    if evidence.expired(now):
        return "runs", [
            *said,
            Reason("expired", f"its evidence expired {moment(evidence.expires_at):%Y-%m-%d %H:%M:%S} UTC"),
        ]
    proven = (
        f"proved by run {evidence.proved_by_run} at {moment(evidence.at):%Y-%m-%d %H:%M:%S} UTC: {evidence.checked}"
    )
    return "done", [*said, Reason("proven", proven)]


def _first_or_again(task: TaskRecord, before: TaskRecord | None, evidence: EvidenceRecord | None) -> list[Reason]:
    if before is None and evidence is not None and evidence.proved_by_run != task.run_id:
        return [Reason("forgotten", f"run {evidence.proved_by_run} completed it and has been forgotten since")]
    if before is None:
        return [Reason("first", "no other run of this graph on this host completed it")]
    changes = _changed(task, before)
    if task.fingerprint is None:
        return [Reason("not looked at", f"its inputs are not known yet in this run; run {before.run_id} completed it")]
    if changes:
        return [Reason("input changed", str(change)) for change in changes]
    return [Reason("same inputs", f"its inputs are those of run {before.run_id}")]


def _run_reasons(run: RunRecord, task: TaskRecord) -> list[Reason]:
    if run.outcome is not None and task.key in run.outcome.skip:
        return [Reason("outcome", f"the run decided: {run.outcome.reason}")]
    return []


def _changed(task: TaskRecord, before: TaskRecord | None) -> tuple[InputChange, ...]:
    if before is None or task.fingerprint is None:
        return ()
    return tuple(differences(Basis.from_json(before.inputs), Basis.from_json(task.inputs)))


def _looked(store: Store, run_id: str, task: TaskRecord) -> list[Reason]:
    """What the newest attempt saw on the host, and why it then did the work."""
    saw, why = _said(store, run_id, task.key, "task.probed"), _said(store, run_id, task.key, "task.applying")
    found = [Reason("looked", f"the host, before it: {saw['reason']}")] if saw.get("reason") else []
    return [*found, Reason("ran", f"the work was done: {why['why']}")] if task.began and why else found


def _said(store: Store, run_id: str, key: str, kind: str) -> Mapping[str, Any]:
    """The newest event of that kind about the task."""
    found = store.events.latest(1, run_id, key, (kind,))
    return found[0].data if found else {}
