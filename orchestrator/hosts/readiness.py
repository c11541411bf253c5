"""When an engine counts as ready, and which ports of a host are taken."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client

POLL_S = 0.5
ERROR_LINE = re.compile(r"(?:Error|Exception|error:|refus|not supported)", re.IGNORECASE)
PORT_CHECK = (
    "import socket,sys; s=socket.socket(); s.settimeout(2); sys.exit(s.connect_ex(('127.0.0.1', int(sys.argv[1]))))"
)
Waiting = Callable[[str, float, float], None]  # text, seconds waited, limit; may raise to stop waiting


class EngineStartError(OrchestrateError):
    """An engine did not come up; the sentence holds its own last error line."""


def port_is_taken(session: HostSession, port: int) -> bool:
    """Whether something accepts connections on a loopback port of the host."""
    return session.transport.run(["python3", "-c", PORT_CHECK, str(port)], timeout_s=20).ok


def require_free_port(session: HostSession, port: int, setting: str) -> None:
    if port_is_taken(session, port):
        raise OrchestrateError(
            f"Port {port} on {session.name!r} is already in use; free it, or set {setting} in hosts.yaml."
        )


def wait_ready(session: HostSession, name: str, port: int, limit_s: float, waiting: Waiting) -> int:
    """Wait until a service is ready and return its pid.

    Ready = active with the same main pid twice, and `/health_generate` answers twice. Raises EngineStartError when
    the process ends or the time is up.
    """
    started = time.monotonic()
    good: list[int] = []
    while len(good) < 2 or good[-1] != good[-2]:
        waited = time.monotonic() - started
        waiting(f"waiting for {name} on port {port}", waited, limit_s)
        if waited > limit_s:
            raise _start_error(session, name, f"was not ready after {limit_s:.0f} s")
        status = session.services.status(name)
        if status.active in ("failed", "inactive"):
            raise _start_error(session, name, f"ended (exit code {status.exit_code})")
        if status.running and _answers(session, port):
            good.append(status.main_pid)
        else:
            time.sleep(POLL_S)
    return good[-1]


def _answers(session: HostSession, port: int) -> bool:
    try:
        with session.http(port) as url, Client(url, timeout_s=60) as client:
            return client.alive() and client.ready()
    except UsageError:  # a key that is missing or wrong does not come right by waiting
        raise
    except OrchestrateError:
        return False


def _start_error(session: HostSession, name: str, what: str) -> EngineStartError:
    lines = session.services.logs(name, 400)
    told = [line.strip() for line in lines if ERROR_LINE.search(line)]
    last = (told or [line.strip() for line in lines if line.strip()] or ["it wrote no log"])[-1]
    return EngineStartError(f"The engine {name!r} on {session.name!r} {what}: {last[-300:]}")
