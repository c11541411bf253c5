"""Opening a store, and the one object through which everything reads and writes it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.errors import StoreError, UsageError
from orchestrator.store import schema
from orchestrator.store.artifacts import Artifacts
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database, Transaction
from orchestrator.store.events import EventLog
from orchestrator.store.evidence import EvidenceStore
from orchestrator.store.facts import Facts
from orchestrator.store.failures import StoreCorruptError, StoreNotReadyError, store_failure
from orchestrator.store.filecheck import check_is_store
from orchestrator.store.leases import Leases
from orchestrator.store.notes import Notes
from orchestrator.store.runs import Runs
from orchestrator.store.sqlite import SqliteDatabase
from orchestrator.store.tasks import Tasks
from orchestrator.store.todos import Todos


class Store:
    """Everything that one store keeps, by kind. Safe to share between threads."""

    def __init__(self, database: Database, artifact_folder: Path, clock: Clock = time.time) -> None:
        self.database = database
        self.clock = clock
        self.events = EventLog(database, clock)
        self.runs = Runs(database, clock)
        self.tasks = Tasks(database)
        self.evidence = EvidenceStore(database, clock)
        self.leases = Leases(database, self.events, clock)
        self.artifacts = Artifacts(database, artifact_folder, clock)
        self.facts = Facts(database, clock)
        self.todos = Todos(database, self.events, clock)
        self.notes = Notes(database, self.events, clock)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything that is written inside commits together or not at all."""
        with self.database.write() as transaction:
            yield transaction

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Everything that is read inside is of one moment."""
        with self.database.read() as transaction:
            yield transaction

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(url: str, read_only: bool = False, clock: Clock = time.time) -> Store:
    """Opens `sqlite:///file` or `postgresql+psycopg://…`, makes it when missing, brings an older schema forward.

    An SQLite file is copied before its schema changes. A corrupt one is kept aside under another name and reported,
    a newer one is refused; both as StoreError.
    """
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        if path.is_dir():
            raise UsageError(f"--state {url}: that is a folder; name the file in it, as in sqlite:///{path}/state.db")
        return _open_sqlite(path, read_only, clock)
    if url.startswith(("postgresql+psycopg://", "postgresql://")):
        return _open_postgres(url, clock)
    raise UsageError(f"--state {url}: write sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE")


def open_to_read(url: str) -> Store:
    """For commands that only look: a read-only or full disk is enough once there is a store of this schema."""
    try:
        return open_store(url, read_only=True)
    except StoreNotReadyError:
        return open_store(url)


def _open_sqlite(path: Path, read_only: bool, clock: Clock) -> Store:
    if sqlite3.sqlite_version_info < (3, 35):
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}: the store needs 3.35 or newer")
    if read_only and not path.exists():
        raise StoreNotReadyError(f"there is no store {path}: `orchestrate init` makes one")
    SqliteDatabase.look_at_file(path, lambda path: _check_file(path, read_only))
    database = SqliteDatabase(path, read_only)
    try:
        _check_and_migrate(database, path, read_only)
    except StoreCorruptError as error:
        database.close()
        raise (error.left_alone() if read_only else _keep_aside(path, error)) from error
    except BaseException:
        database.close()
        raise
    return Store(database, path.with_name(path.name + ".files"), clock)


def _check_file(path: Path, read_only: bool) -> None:
    try:
        check_is_store(path)
    except StoreCorruptError as error:
        raise (error.left_alone() if read_only else _keep_aside(path, error)) from error


def _check_and_migrate(database: SqliteDatabase, path: Path, read_only: bool) -> None:
    found = schema.revision(database)
    schema.check_known(found, str(path))
    if found is not None and not read_only:
        damage = database.damage()
        if damage:
            raise StoreCorruptError(f"the store {path} is corrupt ({damage})")
    if found == schema.HEAD:
        return
    if read_only and found is None:
        raise StoreNotReadyError(f"the store {path} is empty so far: the first command that writes fills it")
    if read_only:
        raise StoreNotReadyError(
            f"the store {path} has an old schema ({found}): any command that writes brings it forward"
        )
    from orchestrator.store.migrate import migrate_sqlite

    try:
        migrate_sqlite(path)
    except Exception as error:
        if isinstance(error, StoreError):
            raise
        raise store_failure(getattr(error, "orig", None) or error, str(path)) from error


def _keep_aside(path: Path, error: StoreCorruptError) -> StoreCorruptError:
    """Renames the file and its companions, so that nothing overwrites what may still be rescued."""
    name = f"{path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S')}"
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            os.replace(part, path.with_name(name + suffix))
    return StoreCorruptError(
        f"{error}: it was kept as {path.with_name(name)}; restore a backup to {path}, or start again with a new store"
    )


def _open_postgres(url: str, clock: Clock) -> Store:
    parts = urlsplit(url)
    place = f"{parts.hostname or 'local socket'}:{parts.port or 5432}{parts.path}"
    try:
        from orchestrator.store.postgres import PostgresDatabase
    except ImportError as error:
        raise UsageError("a PostgreSQL store needs psycopg: pip install 'orchestrate[postgres]'") from error
    database = PostgresDatabase(url, place)
    found = schema.revision(database)
    schema.check_known(found, place)
    if found != schema.HEAD:
        from orchestrator.store.migrate import migrate_postgres

        migrate_postgres(url.replace("postgresql://", "postgresql+psycopg://", 1), place)
    state_home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return Store(database, state_home / "orchestrate" / "files", clock)
