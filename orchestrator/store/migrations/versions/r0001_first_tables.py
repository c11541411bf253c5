"""Runs, tasks, evidence, events, leases, to-dos, notes, artefacts and facts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

sequence = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
TASK_STATES = "'pending', 'in_progress', 'completed', 'failed', 'cancelled', 'skipped', 'unknown', 'rolled_back'"


def upgrade() -> None:
    _runs_and_tasks()
    _evidence_and_events()
    _leases_and_todos()
    _notes_artifacts_facts()


def text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=nullable)


def number(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(), nullable=nullable)


def integer(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def identity(name: str = "id") -> sa.Column[int]:
    return sa.Column(name, sequence, primary_key=True, autoincrement=True)


def _runs_and_tasks() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), primary_key=True),
        text("graph"), text("host"), text("state"), integer("exit_code", True), text("reason"),
        text("settings_json"), text("definition"), text("process"), text("started_by"), text("started_from"),
        text("cancel_reason", True), text("outcome_json", True), number("created_at"), number("finished_at", True),
    )  # fmt: skip
    op.create_table(
        "tasks",
        sa.Column("run_id", sa.String(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", sa.String(), primary_key=True),
        integer("position"), text("content"), text("phase"), text("priority"), text("host"),
        text("depends_on_json"), flag("changes_host"), text("state"), text("step"), flag("began"),
        integer("attempts"), text("claimed_by", True), text("fingerprint", True), text("inputs_json", True),
        text("output_json", True), integer("evidence_id", True), text("reason"), number("started_at", True),
        number("finished_at", True), number("duration_s", True), integer("version"),
        sa.CheckConstraint(f"state IN ({TASK_STATES})", name="task_state_known"),
        sa.CheckConstraint("state <> 'completed' OR evidence_id IS NOT NULL", name="completed_needs_evidence"),
    )  # fmt: skip
    op.create_index("tasks_by_key", "tasks", ["key", "fingerprint"])


def _evidence_and_events() -> None:
    op.create_table(
        "evidence",
        identity(), text("run_id"), text("task_key"), text("proved_by_run"), text("checked"), text("output"),
        text("data_json"), text("outcome_json", True), text("sha256"), number("at"), number("expires_at", True),
        number("contradicted_at", True), text("contradicted_reason", True),
        sa.ForeignKeyConstraint(["run_id", "task_key"], ["tasks.run_id", "tasks.key"], ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    op.create_index("evidence_by_task", "evidence", ["run_id", "task_key"])
    op.create_table(
        "events",
        identity("seq"), text("run_id", True), text("task_key", True), text("kind"), text("data_json"),
        number("at"), integer("pid"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    op.create_index("events_by_run", "events", ["run_id", "seq"])
    op.create_index("events_by_task", "events", ["run_id", "task_key", "seq"])


def _leases_and_todos() -> None:
    op.create_table(
        "leases",
        sa.Column("host", sa.String(), primary_key=True),
        integer("token"), text("owner", True), text("run_id", True), text("process"), number("acquired_at"),
        number("heartbeat_at"), number("ttl_s"), integer("beat"),
    )  # fmt: skip
    op.create_table(
        "todos",
        sa.Column("id", sa.String(), primary_key=True),
        integer("position"), text("content"), text("priority"), text("status"), text("depends_on_json"),
        text("owner", True), number("claimed_until", True), number("created_at"), number("updated_at"),
        integer("version"),
        sa.CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')", name="todo_status_known"
        ),
    )  # fmt: skip


def _notes_artifacts_facts() -> None:
    op.create_table(
        "notes",
        identity(), text("kind"), text("text"), text("run_id", True), text("task_key", True), text("author"),
        number("at"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    op.create_table(
        "artifacts",
        identity(),
        sa.Column("run_id", sa.String(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        text("task_key"), text("name"), text("sha256"), integer("size"), number("at"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    op.create_index("artifacts_by_run", "artifacts", ["run_id", "task_key"])
    op.create_table(
        "facts",
        identity(), text("kind"), text("key"), text("host", True), text("run_id", True), text("task_key", True),
        text("data_json"), number("at"),
        sqlite_autoincrement=True,
    )  # fmt: skip
    op.create_index("facts_by_kind", "facts", ["kind", "key", "id"])
