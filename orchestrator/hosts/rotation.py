"""A replica leaves its router, finishes what runs on it, and comes back: no request fails while it is switched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from orchestrator.errors import HostError, OrchestrateError
from orchestrator.hosts.comeback import Comeback
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.remote.router import Router, Waiting, worker_url

QUEUE_S = 60.0  # the router works off its queue of changes in the background
QUIET = 3  # looks in a row at which nothing may run: a request that was routed before the removal may still arrive
POLL_S = 0.3
RUNNING = ("sglang:num_running_reqs", "sglang:num_queue_reqs")


@contextlib.contextmanager
def router_of(session: HostSession) -> Iterator[Router]:
    """The router of a session's host."""
    with session.http(session.config.router.port, key="router_api_key") as url, Client(url, timeout_s=60) as client:
        yield Router(client, session.name, session.secret("api_key"))


def in_rotation(session: HostSession) -> bool:
    """Whether requests reach this replica; a host without a router has nothing else."""
    if not session.config.router.enabled:
        return True
    with router_of(session) as router:
        return worker_url(session.config) in router.healthy()


def running_requests(client: Client) -> int:
    """Requests that an engine works on or has queued, by its own word."""
    for path in ("/v1/loads?include=core", "/get_load"):
        answer = client.request("GET", path)
        if answer.status_code == 200:
            found = answer.json()
            rows = found["loads"] if isinstance(found, dict) else found
            return sum(int(row.get("num_reqs", row.get("num_running_reqs", 0))) + _waiting(row) for row in rows)
    metrics = client.metrics() or {}
    if RUNNING[0] in metrics:
        return int(sum(metrics.get(name, 0.0) for name in RUNNING))
    raise OrchestrateError(
        f"The engine at {client.base_url} does not say how many requests run on it, so it cannot be drained; "
        "start it with --enable-metrics."
    )


def _waiting(row: dict[str, int]) -> int:
    """`num_reqs` counts what waits already."""
    return 0 if "num_reqs" in row else int(row.get("num_waiting_reqs", 0))


def take_out(session: HostSession, waiting: Waiting, unguarded: Callable[[str], None] | None = None) -> None:
    """Remove a replica from its router and wait until nothing runs on it; nothing on a host without a router.

    The host is told first, and puts it back alone when its operator is lost on the way. Refused when that cannot be
    told (with `unguarded` it only hears why: a full disk must keep no service from its way back), and for the last
    healthy replica: requests would fail.
    """
    if not session.config.router.enabled:
        return
    url = worker_url(session.config)
    guard = Comeback(session)
    with router_of(session) as router:
        others = router.healthy() - {url}
        if not others:
            raise OrchestrateError(
                f"{session.unit} is the only healthy replica behind the router on {session.name!r}, so it stays; "
                "bring another one back first."
            )
        _arm(guard, unguarded)
        waiting = guard.beating(waiting)
        router.remove(url, QUEUE_S, waiting)
    if session.services.status(session.unit).running:
        _drain(session, waiting)
    guard.beat()  # the time in which the switch is armed begins now


def _arm(guard: Comeback, unguarded: Callable[[str], None] | None) -> None:
    try:
        guard.arm()
    except HostError:
        raise
    except OrchestrateError as error:
        if unguarded is None:
            raise
        guard.token = ""
        unguarded(f"{guard.session.unit} leaves the router without the host's own guard: {error}")


def _drain(session: HostSession, waiting: Waiting) -> None:
    limit = session.config.router.drain_timeout_s
    started, quiet = time.monotonic(), 0
    with session.http() as url, Client(url, timeout_s=60) as client:
        while True:
            running = running_requests(client)
            quiet = quiet + 1 if running == 0 else 0
            if quiet == QUIET:
                return
            waited = time.monotonic() - started
            waiting(f"{running} requests still run on {session.unit}", waited, limit)
            if waited > limit:
                raise OrchestrateError(
                    f"{running} requests still run on {session.unit} of {session.name!r} after {limit:g} s; wait, or "
                    "raise router.drain_timeout_s in hosts.yaml."
                )
            time.sleep(POLL_S)


def put_back(session: HostSession, waiting: Waiting) -> None:
    """Bring a replica that is ready back to its router; returns once requests reach it."""
    if session.config.router.enabled:
        with router_of(session) as router:
            router.add(worker_url(session.config), session.config.service.start_timeout_s, waiting)
        Comeback(session).drop()
