"""One writer per host: a lease with owner, heartbeat and expiry, safe against dead owners and wrong clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import LockedError, UsageError
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database, Row
from orchestrator.store.events import EventLog
from orchestrator.store.process import ProcessName, current_process
from orchestrator.store.records import moment

DEFAULT_TTL_S = 60.0
RUN_LEASE = "run/"  # in place of a host's name: the lease of a run that only looks, so that nobody resumes it twice


@dataclass(frozen=True)
class Lease:
    """Who may change a host, and since when. `token` differs for every owner, so a lost lease is noticed."""

    host: str
    token: int
    owner: str
    run_id: str | None
    process: str
    acquired_at: float
    heartbeat_at: float
    ttl_s: float
    beat: int

    @property
    def expires_at(self) -> float:
        return self.heartbeat_at + self.ttl_s

    @property
    def alive(self) -> bool | None:
        """Whether its process lives, None where this machine cannot tell."""
        process = ProcessName.from_text(self.process)
        return process.alive() if process else None

    @property
    def certainly_dead(self) -> bool:
        return self.alive is False

    @staticmethod
    def from_row(row: Row) -> Lease:
        return Lease(**{name: row[name] for name in Lease.__dataclass_fields__})


class Leases:
    """Takes, renews, steals and gives back leases."""

    def __init__(self, database: Database, events: EventLog, clock: Clock) -> None:
        self._database = database
        self._events = events
        self._clock = clock

    def get(self, host: str) -> Lease | None:
        """The lease on a host, also one whose time is up; None when nobody holds it."""
        with self._database.read() as tx:
            row = tx.one("SELECT * FROM leases WHERE host = ? AND owner IS NOT NULL", (host,))
        return Lease.from_row(row) if row else None

    def list(self) -> list[Lease]:
        """The leases of hosts."""
        with self._database.read() as tx:
            rows = tx.all("SELECT * FROM leases WHERE owner IS NOT NULL ORDER BY host")
        return [Lease.from_row(row) for row in rows if not row["host"].startswith(RUN_LEASE)]

    def acquire(
        self,
        host: str,
        owner: str,
        run_id: str | None,
        ttl_s: float = DEFAULT_TTL_S,
        wait_s: float = 0.0,
        first: Callable[[], object] = lambda: None,
    ) -> Lease:
        """Takes the lease or raises LockedError naming the holder; calls `first` before, in the same transaction.

        A holder of another machine is gone when it shows no sign of life on *our* monotonic clock: for half its ttl
        where its time is up, for the whole of it while waiting. So neither machine's wall clock has to be right.
        """
        deadline, watch = time.monotonic() + wait_s, _Watch()
        while True:
            with self._database.write():
                held = self.get(host)
                if held is None or held.certainly_dead or watch.silent_s(held) > self._patience_s(held):
                    first()
                    return self._take(host, owner, run_id, ttl_s, held)
            doubtful = self.expired(held) and not watch.beaten
            if not doubtful and time.monotonic() >= deadline:
                raise LockedError(self._sentence(held))
            time.sleep(0.02 + min(0.2, held.ttl_s / 20))

    def heartbeat(self, lease: Lease) -> bool:
        """Shows a sign of life; False when the lease is no longer ours."""
        with self._database.write() as tx:
            return bool(
                tx.execute(
                    "UPDATE leases SET heartbeat_at = ?, beat = beat + 1 WHERE host = ? AND token = ?"
                    " AND owner IS NOT NULL",
                    (self._clock(), lease.host, lease.token),
                )
            )

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is still that of its owner."""
        held = self.get(lease.host)
        return held is not None and held.token == lease.token

    def release(self, lease: Lease) -> None:
        with self._database.write() as tx:
            if tx.execute(
                "UPDATE leases SET owner = NULL, run_id = NULL WHERE host = ? AND token = ? AND owner IS NOT NULL",
                (lease.host, lease.token),
            ):
                self._events.append(lease.run_id, None, "lease.released", {"host": lease.host})

    def steal(self, host: str, owner: str, reason: str) -> Lease:
        """Takes the lease from whoever holds it and gives it back at once; the reason is recorded."""
        if not reason.strip():
            raise UsageError("stealing a lock needs a reason: add --reason TEXT")
        with self._database.write() as tx:
            held = self.get(host)
            if held is None:
                raise UsageError(f"nobody holds the lock of host {host}")
            tx.execute("UPDATE leases SET owner = NULL, run_id = NULL, token = token + 1 WHERE host = ?", (host,))
            self._events.append(
                held.run_id, None, "lease.stolen",
                {"host": host, "from": held.owner, "by": owner, "reason": reason},
            )  # fmt: skip
        return held

    def expired(self, lease: Lease) -> bool:
        """Whether the holder is certainly dead (same machine) or silent for longer than its ttl."""
        alive = lease.alive
        return self._clock() > lease.expires_at if alive is None else not alive

    def _patience_s(self, lease: Lease) -> float:
        """How long a holder has to be silent before it counts as gone; its heart beats every quarter of its ttl."""
        return lease.ttl_s / 2 if self.expired(lease) else lease.ttl_s

    def _take(self, host: str, owner: str, run_id: str | None, ttl_s: float, held: Lease | None) -> Lease:
        now, process = self._clock(), current_process().to_text()
        with self._database.write() as tx:
            row = tx.one(
                "INSERT INTO leases (host, token, owner, run_id, process, acquired_at, heartbeat_at, ttl_s, beat)"
                " VALUES (?, 1, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT (host) DO UPDATE SET token = leases.token + 1,"
                " owner = excluded.owner, run_id = excluded.run_id, process = excluded.process,"
                " acquired_at = excluded.acquired_at, heartbeat_at = excluded.heartbeat_at,"
                " ttl_s = excluded.ttl_s, beat = 0 RETURNING *",
                (host, owner, run_id, process, now, now, ttl_s),
            )
            data = {"host": host, "owner": owner}
            if held is not None:
                data["expired_owner"] = held.owner
            self._events.append(run_id, None, "lease.acquired", data)
        assert row is not None
        return Lease.from_row(row)

    def _sentence(self, held: Lease) -> str:
        since, until = moment(held.acquired_at), moment(held.expires_at)
        if held.host.startswith(RUN_LEASE):
            return f"run {held.run_id} is being worked on by {held.owner}: wait for it, or `orchestrate cancel` it"
        return (
            f"host {held.host} is locked by {held.owner} (run {held.run_id or 'none'}) since"
            f" {since:%Y-%m-%d %H:%M:%S} UTC, until {until:%H:%M:%S} unless renewed:"
            " wait for it, or `orchestrate lock steal --reason TEXT`"
        )


class _Watch:
    """Sees how long a lease has shown no new beat, on this process's monotonic clock."""

    def __init__(self) -> None:
        self.beaten = False  # whether a beat was seen since the first look
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def silent_s(self, lease: Lease) -> float:
        if lease.alive:
            return 0.0
        if self._seen != (lease.token, lease.beat):
            self.beaten = self._seen is not None
            self._seen, self._since = (lease.token, lease.beat), time.monotonic()
        return time.monotonic() - self._since
