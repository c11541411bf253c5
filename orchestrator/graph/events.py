"""Reading the event stream: follow it live, or write it as JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.store.records import Event
from orchestrator.store.store import Store

POLL_S = 0.1
BATCH = 500


def follow(
    store: Store,
    run_id: str | None = None,
    from_seq: int = 0,
    task_key: str | None = None,
    until: Callable[[], bool] | None = None,
    poll_s: float = POLL_S,
) -> Iterator[Event]:
    """Every event after `from_seq`, past and future, in order; ends when `until()` and nothing is left to read.

    Without `until` it ends when the run does; with neither run nor `until` it goes on for ever.
    """
    ended = until or (lambda: run_id is not None and not store.runs.get(run_id).state.active)
    while True:
        last_look = ended()
        batch = store.events.tail(from_seq, run_id, task_key, limit=BATCH)
        yield from batch
        if batch:
            from_seq = batch[-1].seq
        elif last_look:
            return
        else:
            time.sleep(poll_s)


def history(store: Store, run_id: str | None = None) -> Iterator[Event]:
    """Every event so far, read in batches."""
    yield from follow(store, run_id, until=lambda: True)


def to_json(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq, "at": event.at, "pid": event.pid, "run": event.run_id, "task": event.task_key,
        "kind": event.kind, "data": dict(event.data),
    }  # fmt: skip


def to_line(event: Event) -> str:
    """One JSON line, without the newline."""
    return json.dumps(to_json(event), sort_keys=True, ensure_ascii=True)
