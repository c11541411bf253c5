"""Whether an earlier result of a task may stand in for running it again, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.graph.fingerprint import Basis, brief, differences, digest
from orchestrator.graph.model import TaskContext, TaskSpec
from orchestrator.graph.session import RunSession
from orchestrator.store.records import EvidenceRecord, TaskRecord


@dataclass(frozen=True)
class Candidate:
    """An earlier completion of the task. `why_not` is empty as long as only the probe can speak against it."""

    output: Mapping[str, Any]
    evidence: EvidenceRecord
    refused: str

    @property
    def usable(self) -> bool:
        return not self.refused

    @property
    def why_not(self) -> str:
        return self.refused or "the host is no longer as the earlier run left it"


def find_candidate(session: RunSession, spec: TaskSpec, record: TaskRecord, basis: Basis) -> Candidate | None:
    """The task's own result of before it was reopened, else that of the newest other run of this graph and host."""
    store = session.store
    earlier = record if record.evidence_id is not None else store.tasks.earlier_completed(
        session.plan.graph.name, session.default_host, spec.key, session.run_id
    )  # fmt: skip
    if earlier is None or earlier.evidence_id is None:
        return None
    evidence = store.evidence.get(earlier.evidence_id)
    return Candidate(earlier.output or {}, evidence, why_not(earlier, evidence, basis, store.clock()))


def basis_of(session: RunSession, spec: TaskSpec, context: TaskContext) -> Basis:
    """What the task's result depends on now: its inputs and the results of its dependencies."""
    inputs = session.masked(dict(spec.action.inputs(context)))
    results, fields = {}, {}
    for key in spec.depends_on:
        output = session.outputs.get(key)
        if output is None:
            results[key] = "skipped"
            continue
        counts = dict(session.plan.specs[key].action.identity(output))
        results[key] = digest(counts)
        fields[key] = {name: brief(value) for name, value in counts.items()}
    return Basis(inputs, results, fields)


def why_not(earlier: TaskRecord, evidence: EvidenceRecord, basis: Basis, now: float) -> str:
    """The reason why an earlier result cannot stand, '' if it can as far as the store knows."""
    if earlier.fingerprint != basis.fingerprint:
        changes = differences(Basis.from_json(earlier.inputs), basis)
        return "input changed: " + "; ".join(str(change) for change in changes[:5])
    if evidence.contradicted_reason:
        return f"its evidence was contradicted: {evidence.contradicted_reason}"
    if evidence.expired(now):
        return "its evidence expired"
    return ""
