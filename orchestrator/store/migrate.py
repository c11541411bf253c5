"""Alembic, driven from code so that an installed wheel can migrate; imported only when there is need to."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import URL, Connection, create_engine, event, text

from orchestrator.store.schema import HEAD, check_known

WRITER_LOCK = 0x6F726368  # the advisory lock that every PostgreSQL writer takes ("orch")


def migrate_sqlite(path: Path, target: str = HEAD) -> Path | None:
    """Brings the file to `target`; returns where the copy of an older file was put."""
    kept: list[Path] = []

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def backup(found: str) -> None:
        kept.append(back_up(path, found))

    # Batch migrations copy tables, which must not fire ON DELETE rules: foreign keys stay off for this connection.
    engine = create_engine(
        URL.create("sqlite", database=str(path)), connect_args={"timeout": 60, "isolation_level": None}
    )
    event.listen(engine, "begin", begin)
    _upgrade(engine, str(path), target, backup)
    return kept[0] if kept else None


def migrate_postgres(url: str, place: str, target: str = HEAD) -> None:
    """Brings a PostgreSQL store to `target` in one transaction, which is its own way back."""
    engine = create_engine(url)

    def begin(connection: Connection) -> None:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"))

    event.listen(engine, "begin", begin)
    _upgrade(engine, place, target, lambda found: None)


def back_up(path: Path, found: str) -> Path:
    """A consistent copy of the store beside it, named after its schema and the time."""
    copy = path.with_name(f"{path.name}.backup-{found}-{time.strftime('%Y%m%dT%H%M%S')}")
    part = copy.with_name(f"{copy.name}.part")  # a copy that was cut off must not look like a whole one
    source, target = sqlite3.connect(path), sqlite3.connect(part)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()
    return part.replace(copy)


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _upgrade(engine: Any, place: str, target: str, backup: Callable[[str], None]) -> None:
    try:
        with engine.begin() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
            check_known(found, place)
            if found == target:
                return  # another process was first
            if found is not None:
                backup(found)
            config = alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, target)
    finally:
        engine.dispose()
