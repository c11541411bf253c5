"""The default store: one SQLite file in WAL mode."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.store.database import Database
from orchestrator.store.failures import is_busy, store_failure

BUSY_TIMEOUT_S = 30.0
FOREIGN = "SELECT count(*) > 0 AND sum(name = 'alembic_version') = 0 FROM sqlite_master WHERE type = 'table'"
_IN_USE: Counter[str] = Counter()  # databases that are open in this process, by path
_TURN = threading.Lock()
GIVE_UP_S = 180.0  # no transaction of ours lasts longer than a second; only a stopped process holds on this long


class SqliteDatabase(Database):
    """Writers begin IMMEDIATE so that they queue up instead of failing half-way; readers use their own snapshot.

    Commits are safe against a killed process. After a power cut the last commits may be missing, never half-written:
    every task probes the host before it acts, so that costs a repeated look, not a repeated effect.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        super().__init__(str(path))
        self.path = path
        self.read_only = read_only
        self._name = os.path.realpath(path)
        with _TURN:
            _IN_USE[self._name] += 1

    def close(self) -> None:
        with _TURN:
            if not self._closed:
                _IN_USE[self._name] -= 1
            super().close()

    @staticmethod
    def look_at_file(path: Path, look: Callable[[Path], None]) -> None:
        """Lets `look` read the file, unless this process has it open as a database, whose locks that would end.

        POSIX ends every lock of a process on a file as soon as it closes any descriptor of it: another process would
        then take away the log that is still being read and written here.
        """
        with _TURN:
            if not _IN_USE[os.path.realpath(path)]:
                look(path)

    def damage(self) -> str:
        with self.read() as tx:
            row = tx.one("PRAGMA quick_check(1)")
        said = str(row["quick_check"]) if row else "no answer"
        return "" if said == "ok" else said.splitlines()[-1]

    def size(self) -> int:
        with self.read() as tx:
            pages, size = tx.one("PRAGMA page_count"), tx.one("PRAGMA page_size")
        assert pages is not None
        assert size is not None
        return int(pages["page_count"]) * int(size["page_size"])

    def vacuum(self) -> None:
        super().vacuum()
        connection = self._take()
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # only then do the files shrink
        finally:
            self._give_back(connection)

    def _connect(self) -> sqlite3.Connection:
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return self._open()
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise store_failure(error, self.place) from error
            time.sleep(random.uniform(0.005, 0.05))

    def _open(self) -> sqlite3.Connection:
        if not self.read_only:
            return self._open_as("mode=rwc")
        try:
            return self._open_as("mode=ro")
        except sqlite3.OperationalError as error:
            if is_busy(error) or self._has_pending_writes():
                raise
            # No room or no right for the shared-memory file: without pending writes the file alone can be read.
            return self._open_as("mode=ro&immutable=1")

    def _open_as(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA foreign_keys = ON")
            if self.read_only:
                connection.execute("PRAGMA schema_version")  # the first look at the file: now is when it fails
            elif not connection.execute(FOREIGN).fetchone()[0]:  # the journal mode would stay in another program's file
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _has_pending_writes(self) -> bool:
        log = self.path.with_name(self.path.name + "-wal")
        return log.exists() and log.stat().st_size > 0

    def _begin(self, writable: bool) -> Any:
        statement = "BEGIN IMMEDIATE" if writable else "BEGIN"
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            connection = self._take()
            try:
                connection.execute(statement)
                return connection
            except sqlite3.Error as error:
                connection.close()
                if not is_busy(error) or time.monotonic() > deadline:
                    raise store_failure(error, self.place) from error
            time.sleep(random.uniform(0.005, 0.05))

    def _is_driver_error(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)
        )

    def _failure(self, error: BaseException) -> Exception:
        return store_failure(error, self.place) if isinstance(error, Exception) else RuntimeError(str(error))
