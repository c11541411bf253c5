"""JSON documents about hosts and runs: releases, metrics, benchmark rows. The newest one of a key counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.store.clock import Clock
from orchestrator.store.database import Database, Row
from orchestrator.store.jsontext import canonical


@dataclass(frozen=True)
class Fact:
    """A document with its kind ("release", "metric", …), its key within the kind, and where it comes from."""

    id: int
    kind: str
    key: str
    host: str | None
    run_id: str | None
    task_key: str | None
    data: Mapping[str, Any]
    at: float

    @staticmethod
    def from_row(row: Row) -> Fact:
        return Fact(
            row["id"], row["kind"], row["key"], row["host"], row["run_id"], row["task_key"],
            json.loads(row["data_json"]), row["at"],
        )  # fmt: skip


class Facts:
    """Adds documents, never changes one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(
        self,
        kind: str,
        key: str,
        data: Mapping[str, Any],
        host: str | None = None,
        run_id: str | None = None,
        task_key: str | None = None,
    ) -> Fact:
        with self._database.write() as tx:
            row = tx.one(
                "INSERT INTO facts (kind, key, host, run_id, task_key, data_json, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
                " RETURNING *",
                (kind, key, host, run_id, task_key, canonical(dict(data)), self._clock()),
            )
        assert row is not None
        return Fact.from_row(row)

    def newest(self, kinds: tuple[str, ...], from_id: int = 0) -> list[Fact]:
        """Of each kind, key and host the newest document that was added after `from_id`, oldest first."""
        with self._database.read() as tx:
            rows = tx.all(
                "SELECT * FROM facts WHERE id IN (SELECT max(id) FROM facts WHERE id > ?"
                f" AND kind IN ({', '.join('?' * len(kinds))}) GROUP BY kind, key, host) ORDER BY id",
                (from_id, *kinds),
            )
        return [Fact.from_row(row) for row in rows]

    def of_run(self, run_id: str, kinds: tuple[str, ...], from_id: int = 0) -> list[Fact]:
        """Every document of these kinds after `from_id` that the run added, or on which a proof rests that it took
        over from an earlier run; oldest first."""
        taken_over = (
            "SELECT 1 FROM tasks JOIN evidence ON evidence.id = tasks.evidence_id WHERE tasks.run_id = ?"
            " AND evidence.proved_by_run = facts.run_id AND evidence.task_key = facts.task_key"
        )
        with self._database.read() as tx:
            rows = tx.all(
                f"SELECT * FROM facts WHERE id > ? AND kind IN ({', '.join('?' * len(kinds))})"
                f" AND (run_id = ? OR EXISTS ({taken_over})) ORDER BY id",
                (from_id, *kinds, run_id, run_id),
            )
        return [Fact.from_row(row) for row in rows]

    def list(self, kind: str, key: str | None = None, host: str | None = None, run_id: str | None = None) -> list[Fact]:
        """Oldest first."""
        where = ""
        parameters: list[Any] = []
        for column, value in (("key", key), ("host", host), ("run_id", run_id)):
            if value is not None:
                where, parameters = f"{where} AND {column} = ?", [*parameters, value]
        with self._database.read() as tx:
            rows = tx.all(f"SELECT * FROM facts WHERE kind = ?{where} ORDER BY id", (kind, *parameters))
        return [Fact.from_row(row) for row in rows]

    def latest(self, kind: str, key: str | None = None, host: str | None = None) -> Fact | None:
        found = self.list(kind, key, host)
        return found[-1] if found else None
