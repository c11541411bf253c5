"""What all parts of one running graph share: the store, the hosts, the stop signal and the event listener."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchestrator.graph.model import Cancelled, Outcome
from orchestrator.graph.plan import Plan
from orchestrator.store.jsontext import Mask, masked
from orchestrator.store.leases import Lease
from orchestrator.store.records import Event, TaskRecord
from orchestrator.store.store import Store

SessionFactory = Callable[[str], Any]
Listener = Callable[[Event], None]


class StopSignal:
    """Set once, with the reason, when the run has to stop after the current effects."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        self.kind = ""

    def request(self, kind: str, reason: str) -> None:
        """`kind` is interrupted, cancelled or lock_lost; the first request counts."""
        if not self._event.is_set():
            self.kind, self.reason = kind, reason
            self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()


class RunSession:
    """The shared state of a run in this process; everything that a restart needs is in the store."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        run_id: str,
        host: str,
        settings: Mapping[str, str],
        session_factory: SessionFactory,
        mask: Mask | None,
        listener: Listener | None,
        lease: Lease | None = None,
    ) -> None:
        self.store = store
        self.plan = plan
        self.run_id = run_id
        self.default_host = host
        self.settings = settings
        self.mask = mask
        self.stop = StopSignal()
        self.outcome: Outcome | None = None
        self.outputs: dict[str, Mapping[str, Any]] = {}
        self._listener = listener
        self._record_lock = threading.RLock()
        self._factory = session_factory
        self._hosts: dict[str, Any] = {}
        self._host_lock = threading.Lock()
        self.lease = lease
        self.before_change: Callable[[str], None] = lambda name: None  # set by the run's guard; may raise LockedError

    @contextmanager
    def record(self) -> Iterator[Callable[..., None]]:
        """One transaction; yields `event(kind, task_key, **data)`, which the listener hears of after the commit."""
        committed: list[Event] = []

        def event(kind: str, task_key: str | None = None, /, **data: Any) -> None:
            masked_data = masked(data, self.mask)
            committed.append(self.store.events.append(self.run_id, task_key, kind, masked_data))

        with self._record_lock:
            with self.store.transaction():
                yield event
            for item in committed:
                self._tell(item)

    def lease_lost(self) -> str:
        """Why nothing may be changed any more, which stops the run; '' while it is ours. A stopped process wakes up late."""
        if self.stop.kind == "lock_lost":
            return self.stop.reason
        if self.lease is None or self.store.leases.holds(self.lease):
            return ""
        reason = f"the lock of {self.lease.host} was taken by someone else"
        self.stop.request("lock_lost", reason)
        return reason

    def check_lease(self) -> None:
        """Raises Cancelled when the lease is lost."""
        lost = self.lease_lost()
        if lost:
            raise Cancelled(lost)

    def masked(self, value: Any) -> Any:
        return masked(value, self.mask)

    def host(self, name: str) -> Any:
        """The session to a host, opened on first use and shared by the tasks of the run."""
        with self._host_lock:
            if name not in self._hosts:
                self._hosts[name] = self._factory(name)
            return self._hosts[name]

    def open_host(self, name: str) -> Any:
        """The session to a host that is open now, else None."""
        with self._host_lock:
            return self._hosts.get(name)

    def drop_host(self, name: str, used: Any = None) -> None:
        """Closes a session, so that the next use opens a fresh one and whoever still uses it fails.

        With `used`, only if that is still the open one: another task may have replaced it already.
        """
        with self._host_lock:
            if used is not None and self._hosts.get(name) is not used:
                return
            session = self._hosts.pop(name, None)
        close = getattr(session, "close", None)
        if close is not None:
            try:
                close()
            except Exception as error:
                warnings.warn(f"closing the session to {name} failed: {error}", stacklevel=2)

    def close(self) -> None:
        for name in list(self._hosts):
            self.drop_host(name)

    def load_outputs(self, tasks: Iterable[TaskRecord]) -> None:
        self.outputs = {task.key: task.output for task in tasks if task.output is not None}

    def _tell(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except (Exception, SystemExit) as error:  # a broken display, or a pipe that closed, must not stop a deployment
            self._listener = None
            warnings.warn(f"the event listener failed and is not called any more: {error}", stacklevel=2)
