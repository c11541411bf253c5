"""`hosts check`: can this host be reached, used and written, in the order in which things fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import ExitCode, OrchestrateError
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.rotation import router_of
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.remote.router import worker_url

GIB = 1 << 30


def check_host(config: HostConfig, home: Path) -> dict[str, Any]:
    """{name, ok, exit_code, error, checks[] {name, ok, detail}}; never raises for what the host does."""
    checks: list[dict[str, Any]] = []
    try:
        with open_session(config, home) as session:
            checks.append({"name": "login", "ok": True, "detail": _identity(session)})
            for name, look in (
                ("python3", _python),
                ("sudo", _sudo),
                ("disk", _disk),
                ("GPU", _gpu),
                ("service", _service),
                ("router", _router),
            ):
                checks.append(_checked(name, look, session))
    except OrchestrateError as error:
        checks.append({"name": "login", "ok": False, "detail": str(error)})
        return {
            "name": config.name,
            "ok": False,
            "exit_code": int(error.exit_code),
            "error": str(error),
            "checks": checks,
        }
    bad = [item for item in checks if not item["ok"]]
    error_text = bad[0]["detail"] if bad else None
    code = ExitCode.FAILED_UNCHANGED if bad else ExitCode.DONE
    return {"name": config.name, "ok": not bad, "exit_code": int(code), "error": error_text, "checks": checks}


def _checked(name: str, look: Callable[[HostSession], str], session: HostSession) -> dict[str, Any]:
    try:
        return {"name": name, "ok": True, "detail": look(session)}
    except OrchestrateError as error:
        return {"name": name, "ok": False, "detail": str(error)}


def _identity(session: HostSession) -> str:
    done = session.transport.run(["sh", "-c", "id -un; uname -srm"], check=True)
    return " on ".join(done.stdout.strip().splitlines())


def _python(session: HostSession) -> str:
    done = session.transport.run(["python3", "-c", "import sys; print(sys.version.split()[0])"])
    if not done.ok:
        raise OrchestrateError(f"{session.name} has no python3 in PATH; install Python 3.8 or newer there.")
    return done.stdout.strip()


def _sudo(session: HostSession) -> str:
    if session.config.sudo.method == "none":
        return "not used (sudo: none)"
    session.transport.run(["true"], sudo=True, check=True)
    return f"works ({session.config.sudo.method})"


def _disk(session: HostSession) -> str:
    script = 'd="$1"; while [ ! -d "$d" ]; do d=$(dirname "$d"); done; df -PB1 "$d" | tail -1'
    done = session.transport.run(["sh", "-c", script, "sh", session.root], check=True)
    free = int(done.stdout.split()[3])
    if free < 2 * GIB:
        raise OrchestrateError(f"only {free / GIB:.1f} GiB are free below {session.root}; a release needs about 2 GiB.")
    return f"{free / GIB:.1f} GiB free for {session.root}"


def _gpu(session: HostSession) -> str:
    done = session.transport.run(
        ["sh", "-c", "command -v nvidia-smi >/dev/null && nvidia-smi -L || true"], timeout_s=30
    )
    lines = done.stdout.strip().splitlines()
    if not lines and session.config.engine == "sglang":
        raise OrchestrateError(f"{session.name} shows no NVIDIA GPU; set engine: sglang-cpu if that is meant.")
    return f"{len(lines)} GPU(s)" if lines else "none (CPU engine)"


def _service(session: HostSession) -> str:
    said = []
    for replica in session.replicas():
        known = replica.services.definition(replica.unit) is not None
        said.append(
            f"{replica.unit} is {replica.services.status(replica.unit).active}"
            if known
            else f"no unit {replica.unit} yet"
        )
    return ", ".join(said)


def _router(session: HostSession) -> str:
    if not session.config.router.enabled:
        return "none"
    with router_of(session) as router:
        healthy = router.healthy()
    away = [one.unit for one in session.replicas() if worker_url(one.config) not in healthy]
    if away:
        raise OrchestrateError(f"the router sends no requests to {', '.join(away)}; start them, or look at its log.")
    return f"sends requests to {len(healthy)} replicas"
