"""What the store hands out: plain frozen records, never database rows or sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from orchestrator.graph.model import Outcome, Priority, State
from orchestrator.store.database import Row


class RunState(StrEnum):
    """Where a run stands. All but completed can be resumed."""

    PENDING = "pending"
    RUNNING = "running"
    ROLLING_BACK = "rolling_back"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_UNVERIFIED = "rollback_unverified"

    @property
    def active(self) -> bool:
        """Whether a process should be working on it now."""
        return self in (RunState.RUNNING, RunState.ROLLING_BACK)


def moment(seconds: float | None) -> datetime | None:
    """The UTC time of a stored number of seconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True)
class RunRecord:
    """A run as stored."""

    id: str
    graph: str
    host: str
    state: RunState
    exit_code: int | None
    reason: str
    settings: Mapping[str, str]
    definition: str
    process: str
    started_by: str
    started_from: str
    cancel_reason: str | None
    outcome: Outcome | None
    created_at: float
    finished_at: float | None

    @staticmethod
    def from_row(row: Row) -> RunRecord:
        return RunRecord(
            id=row["id"], graph=row["graph"], host=row["host"], state=RunState(row["state"]),
            exit_code=row["exit_code"], reason=row["reason"], settings=json.loads(row["settings_json"]),
            definition=row["definition"], process=row["process"], started_by=row["started_by"],
            started_from=row["started_from"], cancel_reason=row["cancel_reason"],
            outcome=outcome_from_json(row["outcome_json"]), created_at=row["created_at"],
            finished_at=row["finished_at"],
        )  # fmt: skip


@dataclass(frozen=True)
class TaskRecord:
    """A task of a run as stored; `step` says how far the current attempt got."""

    run_id: str
    key: str
    position: int
    content: str
    phase: str
    priority: Priority
    host: str
    depends_on: tuple[str, ...]
    changes_host: bool
    state: State
    step: str
    began: bool
    attempts: int
    claimed_by: str | None
    fingerprint: str | None
    inputs: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    evidence_id: int | None
    reason: str
    started_at: float | None
    finished_at: float | None
    duration_s: float | None
    version: int

    @property
    def half_done(self) -> bool:
        """Whether an attempt of this run may have changed the host and is neither confirmed nor undone."""
        changing = self.began and self.changes_host and self.state not in (State.COMPLETED, State.ROLLED_BACK)
        return changing or self.state is State.UNKNOWN

    @property
    def why_not_skipped(self) -> str:
        """Why it may not be left out now, which nobody would undo; '' when it may."""
        if not self.half_done:
            return ""
        what = "was not confirmed" if self.state is State.UNKNOWN else "began to change the host"
        return f"task {self.key} may not be skipped: an earlier attempt {what}"

    @staticmethod
    def from_row(row: Row) -> TaskRecord:
        return TaskRecord(
            run_id=row["run_id"], key=row["key"], position=row["position"], content=row["content"],
            phase=row["phase"], priority=Priority(row["priority"]), host=row["host"],
            depends_on=tuple(json.loads(row["depends_on_json"])), changes_host=bool(row["changes_host"]),
            state=State(row["state"]), step=row["step"], began=bool(row["began"]), attempts=row["attempts"],
            claimed_by=row["claimed_by"], fingerprint=row["fingerprint"], inputs=_load(row["inputs_json"]),
            output=_load(row["output_json"]), evidence_id=row["evidence_id"], reason=row["reason"],
            started_at=row["started_at"], finished_at=row["finished_at"], duration_s=row["duration_s"],
            version=row["version"],
        )  # fmt: skip


@dataclass(frozen=True)
class EvidenceRecord:
    """Stored proof. `sha256` is over what was checked, the output and the data."""

    id: int
    run_id: str
    task_key: str
    proved_by_run: str
    checked: str
    output: str
    data: Mapping[str, Any]
    outcome: Outcome | None
    sha256: str
    at: float
    expires_at: float | None
    contradicted_reason: str | None

    @staticmethod
    def from_row(row: Row) -> EvidenceRecord:
        return EvidenceRecord(
            id=row["id"], run_id=row["run_id"], task_key=row["task_key"], proved_by_run=row["proved_by_run"],
            checked=row["checked"], output=row["output"], data=json.loads(row["data_json"]),
            outcome=outcome_from_json(row["outcome_json"]), sha256=row["sha256"], at=row["at"],
            expires_at=row["expires_at"], contradicted_reason=row["contradicted_reason"],
        )  # fmt: skip

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True)
class Event:
    """One thing that happened; `seq` is its place in the stream."""

    seq: int
    run_id: str | None
    task_key: str | None
    kind: str
    data: Mapping[str, Any]
    at: float
    pid: int

    @staticmethod
    def from_row(row: Row) -> Event:
        return Event(
            seq=row["seq"], run_id=row["run_id"], task_key=row["task_key"], kind=row["kind"],
            data=json.loads(row["data_json"]), at=row["at"], pid=row["pid"],
        )  # fmt: skip


def outcome_to_json(outcome: Outcome | None) -> str | None:
    if outcome is None:
        return None
    return json.dumps(
        {"exit_code": int(outcome.exit_code), "reason": outcome.reason, "skip": list(outcome.skip)}, sort_keys=True
    )


def outcome_from_json(text: str | None) -> Outcome | None:
    if text is None:
        return None
    data = json.loads(text)
    return Outcome(data["exit_code"], data["reason"], tuple(data["skip"]))


def _load(text: str | None) -> Any:
    return None if text is None else json.loads(text)
