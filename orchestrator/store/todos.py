"""To-dos that people and agents wrote: added, updated one by one, claimed by one owner at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import LockedError, UsageError
from orchestrator.graph.model import Priority
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database, Row, Transaction
from orchestrator.store.events import EventLog
from orchestrator.store.jsontext import canonical
from orchestrator.store.records import moment

CLAIM_TTL_S = 1800.0


@dataclass(frozen=True)
class Todo:
    """A to-do as stored; `claimed_until` ends the owner's claim unless it is renewed."""

    id: str
    position: int
    content: str
    priority: Priority
    status: str
    depends_on: tuple[str, ...]
    owner: str | None
    claimed_until: float | None
    updated_at: float
    version: int

    @staticmethod
    def from_row(row: Row) -> Todo:
        return Todo(
            row["id"], row["position"], row["content"], Priority(row["priority"]), row["status"],
            tuple(json.loads(row["depends_on_json"])), row["owner"], row["claimed_until"], row["updated_at"],
            row["version"],
        )  # fmt: skip

    def claimed(self, now: float) -> bool:
        return self.status == "in_progress" and self.claimed_until is not None and now < self.claimed_until


@dataclass(frozen=True)
class NewTodo:
    """What an import or `todo add` brings, already checked."""

    id: str
    content: str
    priority: Priority
    status: str
    depends_on: tuple[str, ...] = ()


class Todos:
    """Reads and writes to-dos; each change is one transaction with its event."""

    def __init__(self, database: Database, events: EventLog, clock: Clock) -> None:
        self._database = database
        self._events = events
        self._clock = clock

    def list(self) -> list[Todo]:
        with self._database.read() as tx:
            return [Todo.from_row(row) for row in tx.all("SELECT * FROM todos ORDER BY position, id")]

    def find(self, todo_id: str) -> Todo | None:
        with self._database.read() as tx:
            row = tx.one("SELECT * FROM todos WHERE id = ?", (todo_id,))
        return Todo.from_row(row) if row else None

    def merge(self, items: Sequence[NewTodo], by: str) -> None:
        """Adds new ids and updates known ones; never removes any. All or nothing."""
        now = self._clock()
        with self._database.write() as tx:
            start = _next_position(tx)
            tx.many(
                "INSERT INTO todos (id, position, content, priority, status, depends_on_json, created_at, updated_at,"
                " version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT (id) DO UPDATE SET"
                " content = excluded.content, priority = excluded.priority, status = excluded.status,"
                " depends_on_json = excluded.depends_on_json, updated_at = excluded.updated_at,"
                " owner = CASE WHEN excluded.status = 'in_progress' THEN todos.owner END,"
                " claimed_until = CASE WHEN excluded.status = 'in_progress' THEN todos.claimed_until END,"
                " version = todos.version + 1",
                [
                    (item.id, start + index, item.content, item.priority, item.status,
                     canonical(list(item.depends_on)), now, now)
                    for index, item in enumerate(items)
                ],
            )  # fmt: skip
            named = [item.id for item in items[:20]]
            self._events.append(None, None, "todo.merged", {"count": len(items), "first": named, "by": by})

    def set_status(self, todo_id: str, status: str, by: str) -> Todo:
        with self._database.write() as tx:
            before = self._get(todo_id)
            row = tx.one(
                "UPDATE todos SET status = ?, updated_at = ?, version = version + 1,"
                " owner = CASE WHEN ? = 'in_progress' THEN owner END,"
                " claimed_until = CASE WHEN ? = 'in_progress' THEN claimed_until END WHERE id = ? RETURNING *",
                (status, self._clock(), status, status, todo_id),
            )
            data = {"id": todo_id, "from": before.status, "to": status, "by": by}
            self._events.append(None, None, "todo.status", data)
        assert row is not None
        return Todo.from_row(row)

    def claim(self, todo_id: str, owner: str, ttl_s: float = CLAIM_TTL_S) -> Todo:
        """Atomically makes `owner` the one who works on it, or renews the claim; LockedError names another holder."""
        now = self._clock()
        with self._database.write() as tx:
            todo = self._get(todo_id)
            if todo.claimed(now) and todo.owner != owner:
                until = moment(todo.claimed_until)
                raise LockedError(
                    f"to-do {todo_id} is claimed by {todo.owner} until {until:%H:%M:%S} UTC: take another"
                )
            if todo.status in ("completed", "cancelled"):
                raise UsageError(f"to-do {todo_id} is {todo.status}: set it to pending first")
            row = tx.one(
                "UPDATE todos SET status = 'in_progress', owner = ?, claimed_until = ?, updated_at = ?,"
                " version = version + 1 WHERE id = ? AND version = ? RETURNING *",
                (owner, now + ttl_s, now, todo_id, todo.version),
            )
            self._events.append(None, None, "todo.claimed", {"id": todo_id, "owner": owner})
        assert row is not None
        return Todo.from_row(row)

    def remove(self, todo_id: str, by: str) -> None:
        """Takes it off the list, where nothing waits for it any more; the event keeps what it said."""
        now = self._clock()
        with self._database.write() as tx:
            todo = self._get(todo_id)
            tx.execute("DELETE FROM todos WHERE id = ?", (todo_id,))
            freed = [
                (canonical([key for key in other.depends_on if key != todo_id]), now, other.id)
                for other in self.list()
                if todo_id in other.depends_on
            ]
            tx.many("UPDATE todos SET depends_on_json = ?, updated_at = ?, version = version + 1 WHERE id = ?", freed)
            data = {"id": todo_id, "content": todo.content, "status": todo.status, "by": by}
            self._events.append(None, None, "todo.removed", data)

    def _get(self, todo_id: str) -> Todo:
        todo = self.find(todo_id)
        if todo is None:
            raise UsageError(f"there is no to-do {todo_id}: `orchestrate todo list` shows them")
        return todo


def _next_position(tx: Transaction) -> int:
    row = tx.one("SELECT max(position) AS last FROM todos")
    return int(row["last"]) + 1 if row and row["last"] is not None else 0
