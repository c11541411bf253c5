"""A shared store for several operators: PostgreSQL through psycopg."""

from __future__ import annotations

import random
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row

from orchestrator.store.database import Database
from orchestrator.store.failures import store_failure
from orchestrator.store.migrate import WRITER_LOCK

GIVE_UP_S = 60.0


class PostgresDatabase(Database):
    """Writers queue on one advisory lock, so that event numbers grow in the order of commit, as in SQLite.

    A reader that follows the events would otherwise miss one whose number was drawn earlier but committed later.
    """

    placeholder = "%s"

    def __init__(self, url: str, place: str) -> None:
        super().__init__(place)
        self._dsn = url.replace("postgresql+psycopg://", "postgresql://", 1)

    def size(self) -> int:
        with self.read() as tx:
            row = tx.one("SELECT pg_database_size(current_database()) AS bytes")
        assert row is not None
        return int(row["bytes"])

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=10,
            keepalives_idle=10,  # a network that went silent ends in an error within half a minute
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=30_000,
            options="-c lock_timeout=120s -c idle_in_transaction_session_timeout=120s",
            application_name="orchestrate",
        )

    def _begin(self, writable: bool) -> Any:
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            connection = None
            try:
                connection = self._take()
                connection.execute("BEGIN" if writable else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                if writable:
                    connection.execute(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
                return connection
            except psycopg.OperationalError as error:
                if connection is not None:
                    connection.close()
                if connection is None or time.monotonic() > deadline:
                    raise store_failure(error, self.place) from error
            time.sleep(random.uniform(0.05, 0.2))  # an idle connection was cut: try a fresh one

    def _is_driver_error(self, error: BaseException) -> bool:
        return isinstance(error, (psycopg.OperationalError, psycopg.InternalError))

    def _failure(self, error: BaseException) -> Exception:
        return store_failure(error, self.place) if isinstance(error, Exception) else RuntimeError(str(error))
