"""Keeps a run's lease alive and hears when another process asks the run to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import StoreError
from orchestrator.graph.session import RunSession
from orchestrator.store.leases import Lease

LOOK_EVERY_S = 0.3


@contextmanager
def heartbeat(session: RunSession, lease: Lease) -> Iterator[None]:
    """Works in a thread of its own until the block ends."""
    end = threading.Event()
    thread = threading.Thread(target=_beat, args=(session, lease, end), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _beat(session: RunSession, lease: Lease, end: threading.Event) -> None:
    next_beat = 0.0
    while not end.wait(LOOK_EVERY_S):
        try:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + lease.ttl_s / 4
                if not session.store.leases.heartbeat(lease):
                    session.stop.request("lock_lost", f"the lock of {lease.host} was taken by someone else")
            reason = session.store.runs.get(session.run_id).cancel_reason
            if reason is not None:
                session.stop.request("cancelled", f"cancelled: {reason}")
        except StoreError:
            continue  # the scheduler meets the same error at its next write and ends the run
