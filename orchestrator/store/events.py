"""The append-only event stream. Nothing ever changes or removes an event but the retention command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orchestrator.store.clock import Clock
from orchestrator.store.database import Database
from orchestrator.store.jsontext import canonical
from orchestrator.store.records import Event


class EventLog:
    """Events of every run, in the order of commit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def append(
        self, run_id: str | None, task_key: str | None, kind: str, data: Mapping[str, Any] | None = None
    ) -> Event:
        """Adds an event to the open transaction of this thread, or in one of its own."""
        data, at, pid = data or {}, self._clock(), os.getpid()
        with self._database.write() as tx:
            row = tx.one(
                "INSERT INTO events (run_id, task_key, kind, data_json, at, pid) VALUES (?, ?, ?, ?, ?, ?)"
                " RETURNING seq",
                (run_id, task_key, kind, canonical(data), at, pid),
            )
        assert row is not None
        return Event(row["seq"], run_id, task_key, kind, data, at, pid)

    def tail(
        self,
        from_seq: int = 0,
        run_id: str | None = None,
        task_key: str | None = None,
        kinds: tuple[str, ...] = (),
        limit: int = 1000,
    ) -> list[Event]:
        """The events after `from_seq`, oldest first, at most `limit`."""
        where, parameters = _filter(run_id, task_key, kinds)
        with self._database.read() as tx:
            rows = tx.all(
                f"SELECT * FROM events WHERE seq > ?{where} ORDER BY seq LIMIT ?", (from_seq, *parameters, limit)
            )
        return [Event.from_row(row) for row in rows]

    def latest(
        self,
        count: int,
        run_id: str | None = None,
        task_key: str | None = None,
        kinds: tuple[str, ...] = (),
    ) -> list[Event]:
        """The newest `count` events, oldest first."""
        where, parameters = _filter(run_id, task_key, kinds)
        with self._database.read() as tx:
            rows = tx.all(f"SELECT * FROM events WHERE seq > 0{where} ORDER BY seq DESC LIMIT ?", (*parameters, count))
        return [Event.from_row(row) for row in reversed(rows)]

    def last_seq(self, run_id: str | None = None) -> int:
        """The number of the newest event, 0 without any."""
        where, parameters = _filter(run_id, None, ())
        with self._database.read() as tx:
            row = tx.one(f"SELECT max(seq) AS seq FROM events WHERE seq > 0{where}", parameters)
        return int(row["seq"]) if row and row["seq"] is not None else 0

    def count(self, run_id: str | None = None) -> int:
        where, parameters = _filter(run_id, None, ())
        with self._database.read() as tx:
            row = tx.one(f"SELECT count(*) AS n FROM events WHERE seq > 0{where}", parameters)
        return int(row["n"]) if row else 0


def _filter(run_id: str | None, task_key: str | None, kinds: tuple[str, ...]) -> tuple[str, list[Any]]:
    where = ""
    parameters: list[Any] = []
    if run_id is not None:
        where, parameters = where + " AND run_id = ?", [*parameters, run_id]
    if task_key is not None:
        where, parameters = where + " AND task_key = ?", [*parameters, task_key]
    if kinds:
        where += f" AND kind IN ({', '.join('?' * len(kinds))})"
        parameters = [*parameters, *kinds]
    return where, parameters
