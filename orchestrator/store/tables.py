"""The tables of the store: the schema that the migrations build, declared once with types.

Times are seconds since the epoch (UTC); columns that end in `_json` hold JSON text. Run-time queries are SQL text in
the repositories beside this file: importing SQLModel takes longer than a whole `orchestrate status` may.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, ForeignKeyConstraint, Index, Integer
from sqlmodel import Field, SQLModel

from orchestrator.graph.model import State

Sequence64 = Integer().with_variant(BigInteger(), "postgresql")
TASK_STATES = ", ".join(f"'{state}'" for state in State)


class RunRow(SQLModel, table=True):
    """One execution of a graph on a host. `number` grows with every run, whatever the clock says."""

    __tablename__ = "runs"
    __table_args__ = (Index("runs_by_graph", "graph", "host", "number"), Index("runs_by_number", "number"))

    id: str = Field(primary_key=True)
    graph: str
    host: str
    state: str
    exit_code: int | None = None
    reason: str = ""
    settings_json: str = "{}"
    definition: str
    process: str = ""
    started_by: str = ""
    started_from: str = ""
    cancel_reason: str | None = None
    outcome_json: str | None = None
    created_at: float
    finished_at: float | None = None
    number: int = Field(default=0, sa_column_kwargs={"server_default": "0"})


class TaskRow(SQLModel, table=True):
    """A task of a run. `version` grows with every change: each writer compares and swaps on it."""

    __tablename__ = "tasks"
    __table_args__ = (
        CheckConstraint(f"state IN ({TASK_STATES})", name="task_state_known"),
        CheckConstraint("state <> 'completed' OR evidence_id IS NOT NULL", name="completed_needs_evidence"),
        Index("tasks_by_key", "key", "fingerprint"),
    )

    run_id: str = Field(primary_key=True, foreign_key="runs.id", ondelete="CASCADE")
    key: str = Field(primary_key=True)
    position: int
    content: str
    phase: str
    priority: str
    host: str
    depends_on_json: str
    changes_host: bool
    state: str
    step: str = ""
    began: bool = False
    attempts: int = 0
    claimed_by: str | None = None
    fingerprint: str | None = None
    inputs_json: str | None = None
    output_json: str | None = None
    evidence_id: int | None = None
    reason: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    duration_s: float | None = None
    version: int = 0


class EvidenceRow(SQLModel, table=True):
    """Why a task counts as completed. A re-used result copies the row and names the run that proved it."""

    __tablename__ = "evidence"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "task_key"], ["tasks.run_id", "tasks.key"], ondelete="CASCADE"),
        Index("evidence_by_task", "run_id", "task_key"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=Sequence64)
    run_id: str
    task_key: str
    proved_by_run: str
    checked: str
    output: str
    data_json: str
    outcome_json: str | None = None
    sha256: str
    at: float
    expires_at: float | None = None
    contradicted_at: float | None = None
    contradicted_reason: str | None = None


class EventRow(SQLModel, table=True):
    """The append-only stream; `seq` is in the order of commit."""

    __tablename__ = "events"
    __table_args__ = (
        Index("events_by_run", "run_id", "seq"),
        Index("events_by_task", "run_id", "task_key", "seq"),
        {"sqlite_autoincrement": True},
    )

    seq: int | None = Field(default=None, primary_key=True, sa_type=Sequence64)
    run_id: str | None = None
    task_key: str | None = None
    kind: str
    data_json: str
    at: float
    pid: int


class LeaseRow(SQLModel, table=True):
    """Who may change a host. `token` grows with every owner, `beat` with every sign of life."""

    __tablename__ = "leases"

    host: str = Field(primary_key=True)
    token: int
    owner: str | None = None
    run_id: str | None = None
    process: str = ""
    acquired_at: float
    heartbeat_at: float
    ttl_s: float
    beat: int


class TodoRow(SQLModel, table=True):
    """A to-do that people or agents wrote; tasks of runs are shown beside them, never copied here."""

    __tablename__ = "todos"
    __table_args__ = (
        CheckConstraint("status IN ('pending', 'in_progress', 'completed', 'cancelled')", name="todo_status_known"),
    )

    id: str = Field(primary_key=True)
    position: int
    content: str
    priority: str
    status: str
    depends_on_json: str = "[]"
    owner: str | None = None
    claimed_until: float | None = None
    created_at: float
    updated_at: float
    version: int = 0


class NoteRow(SQLModel, table=True):
    """A decision, risk or assumption, by whom and when."""

    __tablename__ = "notes"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int | None = Field(default=None, primary_key=True, sa_type=Sequence64)
    kind: str
    text: str
    run_id: str | None = None
    task_key: str | None = None
    author: str
    at: float


class ArtifactRow(SQLModel, table=True):
    """A file kept with a run; its content lies beside the store under its SHA-256."""

    __tablename__ = "artifacts"
    __table_args__ = (Index("artifacts_by_run", "run_id", "task_key"), {"sqlite_autoincrement": True})

    id: int | None = Field(default=None, primary_key=True, sa_type=Sequence64)
    run_id: str = Field(foreign_key="runs.id", ondelete="CASCADE")
    task_key: str
    name: str
    sha256: str
    size: int
    at: float


class FactRow(SQLModel, table=True):
    """A JSON document of some kind (release, metric, benchmark row) about a host or a run."""

    __tablename__ = "facts"
    __table_args__ = (Index("facts_by_kind", "kind", "key", "id"), {"sqlite_autoincrement": True})

    id: int | None = Field(default=None, primary_key=True, sa_type=Sequence64)
    kind: str
    key: str
    host: str | None = None
    run_id: str | None = None
    task_key: str | None = None
    data_json: str
    at: float
