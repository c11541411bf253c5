"""Tasks of runs. Every change names the version that it was decided on, so that no update is ever lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.model import State, TaskSpec
from orchestrator.graph.states import check_transition
from orchestrator.store.database import Database
from orchestrator.store.jsontext import canonical
from orchestrator.store.records import TaskRecord


class StaleTask(OrchestrateError):
    """Another process or attempt changed the task first; what was decided on the old state must not be written."""


class Tasks:
    """Reads tasks and moves them from state to state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, run_id: str, specs: Iterable[TaskSpec], host: str) -> None:
        rows = [
            (run_id, spec.key, position, spec.content, spec.phase, spec.priority, spec.host or host,
             canonical(list(spec.depends_on)), spec.changes_host, State.PENDING, "", False, 0, "", 0)
            for position, spec in enumerate(specs)
        ]  # fmt: skip
        with self._database.write() as tx:
            tx.many(
                "INSERT INTO tasks (run_id, key, position, content, phase, priority, host, depends_on_json,"
                " changes_host, state, step, began, attempts, reason, version)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

    def get(self, run_id: str, key: str) -> TaskRecord:
        with self._database.read() as tx:
            row = tx.one("SELECT * FROM tasks WHERE run_id = ? AND key = ?", (run_id, key))
        if row is None:
            raise UsageError(f"run {run_id} has no task {key}: `orchestrate status {run_id}` lists them")
        return TaskRecord.from_row(row)

    def states(self, run_id: str) -> dict[str, State]:
        """Only the states of a run's tasks, in the order of the graph."""
        with self._database.read() as tx:
            rows = tx.all("SELECT key, state FROM tasks WHERE run_id = ? ORDER BY position", (run_id,))
        return {row["key"]: State(row["state"]) for row in rows}

    def list(self, run_id: str) -> list[TaskRecord]:
        """The tasks of a run in the order of the graph."""
        with self._database.read() as tx:
            rows = tx.all("SELECT * FROM tasks WHERE run_id = ? ORDER BY position", (run_id,))
        return [TaskRecord.from_row(row) for row in rows]

    def change(self, task: TaskRecord, state: State, **columns: Any) -> TaskRecord:
        """Moves `task` to `state` and sets columns; StaleTask if it is no longer as `task` says.

        Columns are those of the table; a value for a `_json` column is a JSON value, not text.
        """
        check_transition(task.key, task.state, state)
        values = {
            column: canonical(value) if column.endswith("_json") and value is not None else value
            for column, value in columns.items()
        }
        assignments = "".join(f", {column} = ?" for column in values)
        with self._database.write() as tx:
            row = tx.one(
                f"UPDATE tasks SET state = ?, version = version + 1{assignments}"
                " WHERE run_id = ? AND key = ? AND version = ? RETURNING *",
                (state, *values.values(), task.run_id, task.key, task.version),
            )
        if row is None:
            raise StaleTask(f"task {task.key} of run {task.run_id} was changed by someone else: look at it again")
        return TaskRecord.from_row(row)

    def earlier_completed(self, graph: str, host: str, key: str, before_run: str) -> TaskRecord | None:
        """The newest completed task with this key in another run of the same graph on the same host."""
        with self._database.read() as tx:
            row = tx.one(
                "SELECT tasks.* FROM tasks JOIN runs ON runs.id = tasks.run_id"
                " WHERE tasks.key = ? AND tasks.state = 'completed' AND runs.graph = ? AND runs.host = ?"
                " AND runs.id <> ? ORDER BY runs.number DESC, runs.id DESC LIMIT 1",
                (key, graph, host, before_run),
            )
        return TaskRecord.from_row(row) if row else None
