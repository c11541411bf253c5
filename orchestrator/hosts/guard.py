"""The locks that a run holds on its hosts: taken before the first change there, kept alive, given back at the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from orchestrator.errors import LockedError, OrchestrateError, UsageError
from orchestrator.graph.session import RunSession
from orchestrator.hosts import lock
from orchestrator.store.process import ProcessName, current_process
from orchestrator.store.store import Store


@contextlib.contextmanager
def host_guard(session: RunSession, *, ttl_s: float = lock.TTL_S, beat_s: float = lock.BEAT_S) -> Iterator[None]:
    """Guards every host that the run changes during the block. A lock that is lost asks the run to stop."""
    locks, done = _Locks(session, ttl_s), threading.Event()
    beat = threading.Thread(target=locks.keep, args=(done, beat_s), name="host locks", daemon=True)
    session.before_change = locks.take
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join(10)
        locks.release()


class _Locks:
    def __init__(self, session: RunSession, ttl_s: float) -> None:
        self._session = session
        self._ttl_s = ttl_s
        self._held: list[str] = []
        self._turn = threading.Lock()

    def take(self, name: str) -> None:
        """The first call for a host takes its lock, or raises LockedError naming who has it."""
        with self._turn:
            if name in self._held:
                return
            releases = self._session.host(name).releases
            holder = lock.take(releases, self._session.run_id, ttl_s=self._ttl_s)
            if holder is not None:
                gone = why_gone(self._session.store, holder)
                if not gone:
                    raise LockedError(lock.refusal(name, holder))
                lock.steal(releases, self._session.run_id, gone, ttl_s=self._ttl_s, only_from=holder.run_id)
                self._record(name, holder, gone)
            self._held.append(name)

    def keep(self, done: threading.Event, beat_s: float) -> None:
        """Shows signs of life over the connection that is open; one that is away now may be back at the next beat."""
        while not done.wait(beat_s):
            for name in tuple(self._held):
                host = self._session.open_host(name)
                with contextlib.suppress(OrchestrateError):
                    lost = lock.renew(host.releases, self._session.run_id, ttl_s=self._ttl_s) if host else ""
                    if lost:
                        self._session.stop.request("lock_lost", lost)

    def release(self) -> None:
        """Without a connection the lock expires by itself."""
        for name in self._held:
            host = self._session.open_host(name)
            with contextlib.suppress(OrchestrateError):
                if host is not None:
                    lock.release(host.releases, self._session.run_id)

    def _record(self, name: str, holder: lock.Holder, reason: str) -> None:
        with self._session.record() as event:
            event("lock.taken_over", None, host=name, owner=holder.owner, run=holder.run_id, reason=reason)


def why_gone(store: Store, holder: lock.Holder) -> str:
    """Why the holder certainly works no more, '' when it may: its process ended here, or our store knows its run."""
    process = ProcessName.from_text(holder.process)
    # Only within one boot of one machine: machine ids are copied with images, boot ids are not.
    if process is not None and process.boot == current_process().boot and process.alive() is False:
        return f"the process of run {holder.run_id} has ended"
    try:
        run = store.runs.get(holder.run_id)
    except UsageError:
        return ""
    lease = store.leases.get(run.host)
    working = lease is not None and lease.run_id == run.id and not store.leases.expired(lease)
    known = run.id == holder.run_id  # not another run whose id only begins so
    return f"run {run.id} of this store works no more" if known and not working else ""
