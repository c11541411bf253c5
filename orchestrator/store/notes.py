"""Decisions, risks and assumptions, by people or agents, tied to a task where that helps."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from orchestrator.errors import UsageError
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database, Row, Transaction
from orchestrator.store.events import EventLog
from orchestrator.store.jsontext import clean_text

KINDS = ("decision", "risk", "assumption")
MAX_TEXT = 20_000


@dataclass(frozen=True)
class Note:
    """A note as stored."""

    id: int
    kind: str
    text: str
    run_id: str | None
    task_key: str | None
    author: str
    at: float

    @staticmethod
    def from_row(row: Row) -> Note:
        return Note(**{name: row[name] for name in Note.__dataclass_fields__})


class Notes:
    """Adds and lists notes."""

    def __init__(self, database: Database, events: EventLog, clock: Clock) -> None:
        self._database = database
        self._events = events
        self._clock = clock

    def add(self, kind: str, text: str, author: str, task_key: str | None = None, run_id: str | None = None) -> Note:
        if kind not in KINDS:
            raise UsageError(f"note kind {kind!r}: choose {', '.join(KINDS)}")
        text = clean_text(text).strip()
        if not text or len(text) > MAX_TEXT:
            raise UsageError(f"a note has 1 to {MAX_TEXT} characters, this one has {len(text)}")
        with self._database.write() as tx:
            _check_task(tx, task_key)
            row = tx.one(
                "INSERT INTO notes (kind, text, run_id, task_key, author, at) VALUES (?, ?, ?, ?, ?, ?) RETURNING *",
                (kind, text, run_id, task_key, author, self._clock()),
            )
            assert row is not None
            note = Note.from_row(row)
            self._events.append(run_id, task_key, "note.added", {"id": note.id, "kind": kind, "author": author})
        return note

    def list(self, kind: str | None = None, task_key: str | None = None) -> list[Note]:
        """Oldest first."""
        where = ""
        parameters: list[str] = []
        for column, value in (("kind", kind), ("task_key", task_key)):
            if value is not None:
                where, parameters = f"{where} AND {column} = ?", [*parameters, value]
        with self._database.read() as tx:
            return [
                Note.from_row(row) for row in tx.all(f"SELECT * FROM notes WHERE id > 0{where} ORDER BY id", parameters)
            ]


def _check_task(tx: Transaction, key: str | None) -> None:
    """Refuses a key that no run has; before the first run any key may be meant."""
    if key is None or tx.one("SELECT 1 FROM tasks WHERE key = ? LIMIT 1", (key,)):
        return
    known = [row["key"] for row in tx.all("SELECT DISTINCT key FROM tasks")]
    if known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else "`orchestrate status` lists those of the newest run"
        raise UsageError(f"no run has a task {key}; {hint}")
