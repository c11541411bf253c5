"""The locks on hosts: for a run from its first change on, or for one command; kept alive, and looked at again after a cut."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator

from orchestrator.errors import LockedError, OrchestrateError, UsageError
from orchestrator.graph.session import RunSession
from orchestrator.hosts import lock
from orchestrator.hosts.session import HostSession
from orchestrator.release.store import ReleaseStore
from orchestrator.store.process import ProcessName, current_process, who
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


@contextlib.contextmanager
def held_for(store: Store, session: HostSession, command: str) -> Iterator[None]:
    """Both locks of a host, in the store and on the host, for a command that is no run; LockedError names the holder."""
    name = f"{command}-{uuid.uuid4().hex[:8]}"
    with leased_for(store, session.name):
        claim(store, session.releases, session.name, name, lock.TTL_S)
        with lock.held(session.releases, name):
            yield


@contextlib.contextmanager
def leased_for(store: Store, host: str) -> Iterator[None]:
    """The store's lock of a host for a command that is no run."""
    lease = store.leases.acquire(host, who(), None)
    try:
        yield
    finally:
        store.leases.release(lease)


def claim(store: Store, releases: ReleaseStore, host: str, run_id: str, ttl_s: float) -> tuple[lock.Holder, str] | None:
    """Take the lock on a host. A holder that certainly works no more is returned with the reason; LockedError otherwise."""
    holder = lock.take(releases, run_id, ttl_s=ttl_s)
    if holder is None:
        return None
    gone = why_gone(store, holder)
    if not gone:
        raise LockedError(lock.refusal(host, holder))
    lock.steal(releases, run_id, gone, ttl_s=ttl_s, only_from=holder.run_id)
    return holder, gone


class _Locks:
    def __init__(self, session: RunSession, ttl_s: float) -> None:
        self._session = session
        self._ttl_s = ttl_s
        self._held: dict[str, HostSession] = {}  # by host, the session over which the lock was last seen to be ours
        self._turn = threading.Lock()

    def take(self, name: str) -> None:
        """The first call for a host takes its lock, or raises LockedError naming who has it.

        A later one over another session, or over a connection that was away, makes sure that nobody had it meanwhile:
        what this run knows of the host would be out of date.
        """
        with self._turn:
            host: HostSession = self._session.host(name)
            if self._held.get(name) is host:
                return
            if name in self._held:
                self._still_ours(host)
            else:
                taken_over = claim(self._session.store, host.releases, name, self._session.run_id, self._ttl_s)
                if taken_over:
                    self._record(name, *taken_over)
            self._held[name] = host
            host.transport.when_back(lambda: self._still_ours(host))

    def _still_ours(self, host: HostSession) -> None:
        lost = lock.renew(host.releases, self._session.run_id, ttl_s=self._ttl_s)
        if lost:
            self._session.stop.request("lock_lost", lost)
            raise LockedError(lost)

    def keep(self, done: threading.Event, beat_s: float) -> None:
        """Shows signs of life over the connection that is open; one that is away now may be back at the next beat."""
        while not done.wait(beat_s):
            for name in tuple(self._held):
                host = self._session.open_host(name)
                with contextlib.suppress(OrchestrateError):
                    if host:
                        self._still_ours(host)

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
