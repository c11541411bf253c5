"""Files kept with a run, stored once per content under their SHA-256 beside the store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import StoreError
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database, Row


@dataclass(frozen=True)
class Artifact:
    """A kept file: its name within the run, and where its content lies."""

    run_id: str
    task_key: str
    name: str
    sha256: str
    size: int
    at: float
    path: Path


class Artifacts:
    """Adds and finds kept files."""

    def __init__(self, database: Database, folder: Path, clock: Clock) -> None:
        self._database = database
        self.folder = folder
        self._clock = clock

    def add(self, run_id: str, task_key: str, name: str, content: bytes) -> Artifact:
        sha256 = hashlib.sha256(content).hexdigest()
        self._write(sha256, content)
        with self._database.write() as tx:
            row = tx.one(
                "INSERT INTO artifacts (run_id, task_key, name, sha256, size, at) VALUES (?, ?, ?, ?, ?, ?)"
                " RETURNING *",
                (run_id, task_key, name, sha256, len(content), self._clock()),
            )
        assert row is not None
        return self._artifact(row)

    def list(self, run_id: str, task_key: str | None = None) -> list[Artifact]:
        where, parameters = ("", (run_id,)) if task_key is None else (" AND task_key = ?", (run_id, task_key))
        with self._database.read() as tx:
            rows = tx.all(f"SELECT * FROM artifacts WHERE run_id = ?{where} ORDER BY id", parameters)
        return [self._artifact(row) for row in rows]

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def referenced(self) -> set[str]:
        with self._database.read() as tx:
            return {row["sha256"] for row in tx.all("SELECT DISTINCT sha256 FROM artifacts")}

    def _write(self, sha256: str, content: bytes) -> None:
        """Write and rename: a file under its hash is always whole."""
        target = self.path(sha256)
        with contextlib.suppress(OSError):
            os.utime(target)  # it is there; retention removes only what nobody added or named for an hour
            return
        part = target.with_name(f".{sha256[:12]}.{secrets.token_hex(4)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            os.replace(part, target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StoreError(
                f"a file of the run could not be kept in {self.folder} ({error.strerror}): free space, then resume"
            ) from error

    def _artifact(self, row: Row) -> Artifact:
        return Artifact(
            row["run_id"], row["task_key"], row["name"], row["sha256"], row["size"], row["at"],
            self.path(row["sha256"]),
        )  # fmt: skip
