"""Forgets old runs on demand. What may still be needed stays: active runs and the newest completed run of each graph."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from orchestrator.store.database import Row
from orchestrator.store.records import RunState
from orchestrator.store.store import Store


@dataclass(frozen=True)
class Pruned:
    """What was (or with dry_run would be) removed."""

    runs: tuple[str, ...]
    events: int
    files: int


def prune(store: Store, older_than_s: float, keep: int = 1, dry_run: bool = False) -> Pruned:
    """Removes runs created more than `older_than_s` seconds ago, but none of the newest `keep` of a graph and host."""
    with store.transaction() as tx:
        rows = tx.all("SELECT * FROM runs ORDER BY number DESC, id DESC")
        doomed = tuple(row["id"] for row in _doomed(rows, store.clock() - older_than_s, keep))
        events = 0
        for run_id in doomed:
            row = tx.one("SELECT count(*) AS n FROM events WHERE run_id = ?", (run_id,))
            events += int(row["n"]) if row else 0
            if not dry_run:
                for table in ("events", "facts", "evidence", "artifacts", "tasks"):
                    tx.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
                tx.execute("DELETE FROM runs WHERE id = ?", (run_id,))
        if doomed and not dry_run:
            store.events.append(None, None, "store.pruned", {"runs": list(doomed), "events": events})
    files = 0 if dry_run else _remove_orphans(store)
    return Pruned(doomed, events, files)


def vacuum(store: Store) -> tuple[int, int]:
    """Gives the space of removed rows back to the disk; the store's bytes before and after."""
    before = store.database.size()
    store.database.vacuum()
    return before, store.database.size()


def _doomed(rows: list[Row], before: float, keep: int) -> list[Row]:
    seen: dict[tuple[str, str], int] = {}
    proven: set[tuple[str, str]] = set()
    doomed = []
    for row in rows:
        group = (row["graph"], row["host"])
        state = RunState(row["state"])
        seen[group] = seen.get(group, 0) + 1
        newest_proven = state is RunState.COMPLETED and group not in proven
        if state is RunState.COMPLETED:
            proven.add(group)
        unfinished = state.active or state is RunState.ROLLBACK_UNVERIFIED
        if row["created_at"] < before and seen[group] > keep and not newest_proven and not unfinished:
            doomed.append(row)
    return doomed


def _remove_orphans(store: Store) -> int:
    """Deletes kept files that no run names any more; a file that is being added is newer than an hour."""
    removed = 0
    referenced = store.artifacts.referenced()
    for path in store.artifacts.folder.glob("??/*"):
        with contextlib.suppress(FileNotFoundError):  # another process forgets runs too
            old = store.clock() - path.stat().st_mtime > 3600
            if old and path.name not in referenced:
                path.unlink()
                removed += 1
    return removed
