"""The lock that a run holds on a host, kept alive by a heartbeat; a crashed operator's lock expires by itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.errors import LockedError, OrchestrateError
from orchestrator.release.store import ReleaseStore
from orchestrator.remote.script import run_script
from orchestrator.store.process import current_process, who

TTL_S = 120.0
BEAT_S = 30.0


@dataclass(frozen=True)
class Holder:
    """Who holds a host. Times are ISO 8601 in UTC, by the host's clock."""

    owner: str
    run_id: str
    since: str
    expires: str
    stolen_reason: str = ""
    process: str = ""


def lock_status(store: ReleaseStore) -> Holder | None:
    """None when the host is free."""
    return _holder(_ask(store, "status", ""))


@contextlib.contextmanager
def held(
    store: ReleaseStore, run_id: str, *, ttl_s: float = TTL_S, beat_s: float = BEAT_S
) -> Iterator[threading.Event]:
    """Hold the host's lock during the block. The yielded event is set when it was lost (stolen or expired).

    Raises LockedError, naming holder and times, when another run has it. The same run takes it again after a crash.
    """
    holder = take(store, run_id, ttl_s=ttl_s)
    if holder is not None:
        raise LockedError(refusal(store.transport.host, holder))
    done, lost = threading.Event(), threading.Event()
    beat = threading.Thread(target=_beat, args=(store, run_id, ttl_s, beat_s, done, lost), daemon=True)
    beat.start()
    try:
        yield lost
    finally:
        done.set()
        beat.join(10)
        with contextlib.suppress(OrchestrateError):  # an unreachable host lets the lock expire
            release(store, run_id)


def take(store: ReleaseStore, run_id: str, *, ttl_s: float = TTL_S) -> Holder | None:
    """Take the lock for a run; None when it has it now, else who holds it. The same run may take it again."""
    answer = _ask(store, "take", run_id, ttl_s=ttl_s)
    return None if answer["granted"] else _holder(answer)


def renew(store: ReleaseStore, run_id: str, *, ttl_s: float = TTL_S) -> str:
    """Show a sign of life; '' when the run has the lock, else the sentence that says who took it and why."""
    answer = _ask(store, "beat", run_id, ttl_s=ttl_s)
    if answer["granted"]:
        return ""
    thief = _holder(answer)
    by = f"{thief.owner} (run {thief.run_id or 'none'})" if thief else "another run"
    why = f": {thief.stolen_reason}" if thief and thief.stolen_reason else ""
    return f"the lock on host {store.transport.host} was taken by {by}{why}"


def release(store: ReleaseStore, run_id: str) -> None:
    """Give the lock back; nothing happens when the run does not have it."""
    _ask(store, "release", run_id)


def forget(store: ReleaseStore) -> bool:
    """Take the files of a free lock away; False, and nothing happens, when a run holds it."""
    return bool(_ask(store, "forget", "")["granted"])


def steal(store: ReleaseStore, run_id: str, reason: str, *, ttl_s: float = TTL_S, only_from: str = "") -> Holder | None:
    """Take the lock whoever holds it, or only from the run `only_from`; the reason is kept in the lock.

    Returns the holder it was taken from; LockedError when that is another one by now. `ttl_s` 0 leaves the lock free.
    """
    if not reason.strip():
        raise LockedError("stealing a lock needs a reason; give one with --reason.")
    before = lock_status(store)
    answer = _ask(store, "steal", run_id, ttl_s=ttl_s, reason=reason, only_from=only_from)
    if not answer["granted"]:
        raise LockedError(refusal(store.transport.host, _holder(answer)))
    return before


def refusal(host: str, holder: Holder | None) -> str:
    if holder is None:
        return f"host {host!r} is locked by another run; try again."
    return (
        f"host {host!r} is locked by {holder.owner} (run {holder.run_id}) since {holder.since}, until {holder.expires} "
        "unless renewed; wait, or take it with `orchestrate lock steal --reason …`."
    )


def _beat(
    store: ReleaseStore, run_id: str, ttl_s: float, beat_s: float, done: threading.Event, lost: threading.Event
) -> None:
    while not done.wait(beat_s):
        with contextlib.suppress(OrchestrateError):  # a connection that is down now may be back at the next beat
            if renew(store, run_id, ttl_s=ttl_s):
                lost.set()
                return


def _ask(
    store: ReleaseStore, verb: str, run_id: str, *, ttl_s: float = TTL_S, reason: str = "", only_from: str = ""
) -> dict[str, Any]:
    wish = {
        "path": store.layout.lock,
        "verb": verb,
        "run_id": run_id,
        "ttl_s": ttl_s,
        "reason": reason,
        "from": only_from,
        "owner": who(),
        "process": current_process().to_text(),
    }
    return dict(run_script(store.transport, "hostlock", wish, sudo=store.privileged, timeout_s=60))


def _holder(answer: dict[str, Any]) -> Holder | None:
    row = answer["holder"]
    if row is None:
        return None

    def iso(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

    stolen = row.get("stolen") or {}
    reason, process = stolen.get("reason", ""), row.get("process", "")
    return Holder(row["owner"], row["run_id"], iso(row["since"]), iso(row["expires"]), reason, process)
