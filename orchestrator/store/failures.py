"""Turns what a database driver raises into one sentence that says what to do next."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from orchestrator.errors import StoreError


class StoreCorruptError(StoreError):
    """The file is not a readable store."""

    def left_alone(self) -> StoreCorruptError:
        """The same for whoever only reads, with what can be done."""
        return StoreCorruptError(f"{self}: restore a copy of it, or choose another store with --state")


class StoreNotReadyError(StoreError):
    """There is no store yet, or it has an older schema: whoever may write makes it or brings it forward."""


class StoreBusyError(StoreError):
    """Another process kept the store locked for longer than any transaction of ours lasts."""


FULL_BYTES = 256 * 1024

_SENTENCES = (
    ("file is not a database", StoreCorruptError, "{place} is not a readable store"),
    ("malformed", StoreCorruptError, "the store {place} is corrupt"),
    (
        "disk is full",
        StoreError,
        "the disk that holds {place} is full: nothing of this step was written; free space and resume",
    ),
    ("disk i/o", StoreError, "reading or writing {place} failed ({error}): check the disk, then resume"),
    (
        "readonly",
        StoreError,
        "the store {place} is read-only: make it and its folder writable, or choose another with --state",
    ),
    ("read-only", StoreError, "the store {place} is read-only: make it writable, or choose another with --state"),
    ("unable to open", StoreError, "the store {place} cannot be opened: check that its folder exists and is writable"),
    ("locked", StoreBusyError, "another process keeps the store {place} busy: end it, or try again"),
    ("busy", StoreBusyError, "another process keeps the store {place} busy: end it, or try again"),
    ("lock timeout", StoreBusyError, "another process keeps the store {place} busy: end it, or try again"),
)


def store_failure(error: Exception, place: str) -> StoreError:
    """The StoreError for a driver's `error`; `place` is the file or URL without a password."""
    text = str(error).lower()
    if "disk i/o" in text and _disk_is_full(place):  # so SQLite says it where its shared-memory file finds no room
        text = "disk is full"
    for fragment, kind, sentence in _SENTENCES:
        if fragment in text:
            return kind(sentence.format(place=place, error=error))
    return StoreError(f"the store {place} failed ({_first_line(error)}): check it with `orchestrate doctor`")


def is_busy(error: Exception) -> bool:
    """Whether waiting helps."""
    return isinstance(error, sqlite3.OperationalError) and any(
        word in str(error).lower() for word in ("locked", "busy")
    )


def _disk_is_full(place: str) -> bool:
    try:
        return shutil.disk_usage(Path(place).parent).free < FULL_BYTES
    except OSError:
        return False


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
