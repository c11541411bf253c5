"""What lies at the path of an SQLite store, looked at before SQLite writes to it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import StoreError
from orchestrator.store.failures import StoreCorruptError

MAGIC = b"SQLite format 3\0"
SUFFIXES = (".db", ".sqlite", ".sqlite3")
LOG_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
LOG_HEADER = 32  # bytes; a shorter log holds no commit


def check_is_store(path: Path) -> None:
    """Refuses a file of another kind, which must stay where it is, and a log from which SQLite would read nothing.

    SQLite passes over a log whose beginning is damaged, and with it over every commit that lies in it.
    """
    head = _beginning(path, len(MAGIC))
    if head and head != MAGIC and path.suffix not in SUFFIXES:
        raise StoreError(f"--state names {path}, which is no store but another file: choose a file of its own")
    log = path.with_name(f"{path.name}-wal")
    start = _beginning(log, LOG_HEADER)
    if len(start) == LOG_HEADER and start[:4] not in LOG_MAGICS and any(start):
        raise StoreCorruptError(f"the store {path} is corrupt (its newest changes, in {log.name}, cannot be read)")


def _beginning(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:  # not there, or for SQLite to complain about
        return b""
