"""Evidence: the stored proof without which no task is completed."""

from __future__ import annotations

import hashlib

from orchestrator.graph.model import Evidence
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database
from orchestrator.store.jsontext import canonical, storable
from orchestrator.store.records import EvidenceRecord, outcome_to_json


class EvidenceStore:
    """Writes proof, reads it, and marks it as contradicted by what is true now."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, run_id: str, task_key: str, evidence: Evidence) -> EvidenceRecord:
        now = self._clock()
        expires_at = None if evidence.expires_after_s is None else now + evidence.expires_after_s
        checked, output = storable(evidence.checked), storable(evidence.output)
        data = canonical(dict(evidence.data))
        return self._insert(
            (run_id, task_key, run_id, checked, output, data, outcome_to_json(evidence.outcome),
             digest(checked, output, data), now, expires_at)
        )  # fmt: skip

    def reuse(self, run_id: str, task_key: str, earlier: EvidenceRecord) -> EvidenceRecord:
        """A copy for another run; it keeps its age and the name of the run that proved it."""
        return self._insert(
            (run_id, task_key, earlier.proved_by_run, earlier.checked, earlier.output,
             canonical(dict(earlier.data)), outcome_to_json(earlier.outcome), earlier.sha256, earlier.at,
             earlier.expires_at)
        )  # fmt: skip

    def get(self, evidence_id: int) -> EvidenceRecord:
        with self._database.read() as tx:
            row = tx.one("SELECT * FROM evidence WHERE id = ?", (evidence_id,))
        if row is None:
            raise LookupError(f"no evidence {evidence_id}")
        return EvidenceRecord.from_row(row)

    def of_run(self, run_id: str) -> list[EvidenceRecord]:
        with self._database.read() as tx:
            rows = tx.all("SELECT * FROM evidence WHERE run_id = ? ORDER BY id", (run_id,))
        return [EvidenceRecord.from_row(row) for row in rows]

    def contradict(self, evidence_id: int, reason: str) -> None:
        """The host no longer is as this evidence says."""
        with self._database.write() as tx:
            tx.execute(
                "UPDATE evidence SET contradicted_at = ?, contradicted_reason = ? WHERE id = ?",
                (self._clock(), reason, evidence_id),
            )

    def _insert(self, values: tuple[object, ...]) -> EvidenceRecord:
        with self._database.write() as tx:
            row = tx.one(
                "INSERT INTO evidence (run_id, task_key, proved_by_run, checked, output, data_json, outcome_json,"
                " sha256, at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING *",
                values,
            )
        assert row is not None
        return EvidenceRecord.from_row(row)


def digest(checked: str, output: str, data_json: str) -> str:
    """SHA-256 over the three parts, each with its length, so that no two texts can be shifted into each other."""
    parts = (checked, output, data_json)
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()
