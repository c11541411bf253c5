"""Gives a host SGLang's router in front of its replicas: an environment of its own, and a service."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.release import wheels
from orchestrator.remote.pip import Progress, operator_settings, pip_install
from orchestrator.remote.services import ServiceDriver, ServiceUnit
from orchestrator.transport.base import Transport

REQUIREMENTS = "requirements-router.txt"
CHECK = "import importlib.metadata as m; print('sglang-router==' + m.version('sglang-router'))"
ANSWERS = "import sys,urllib.request as u; u.build_opener(u.ProxyHandler({})).open(sys.argv[1], timeout=5)"
START_S = 60.0


@dataclass(frozen=True)
class RouterHost:
    """What is needed to know. `home` is absolute on the host; `workers` are the URLs of the replicas."""

    transport: Transport
    services: ServiceDriver
    home: str
    unit: str
    port: int
    workers: Sequence[str]
    policy: str

    @property
    def venv(self) -> str:
        return posixpath.join(self.home, "opt", "router", "venv")

    @property
    def python(self) -> str:
        return posixpath.join(self.venv, "bin", "python")


def router_service(host: RouterHost) -> ServiceUnit:
    """The router knows every replica from its command line, so that it finds all of them after a restart."""
    argv = (
        host.python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(host.port),
        "--worker-urls", *host.workers, "--policy", host.policy,
        # The defaults look once in 30 s, at which a replica that is back would wait for requests that long.
        "--worker-startup-check-interval", "1", "--health-check-interval-secs", "5",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(host.port + 1), "--log-level", "warn",
    )  # fmt: skip
    return ServiceUnit(host.unit, argv, description="SGLang's router in front of the replicas", stop_timeout_s=30.0)


def provision_router(host: RouterHost, progress: Progress) -> list[str]:
    """Make environment and service so; returns what was changed, [] when all was there."""
    changed = _environment(host, progress)
    unit = router_service(host)
    found = host.services.definition(host.unit)
    if found is None or found.argv != unit.argv:
        host.services.install(unit)
        changed.append(f"unit {host.unit}")
    if host.services.status(host.unit).running and changed:
        host.services.restart(host.unit)
    elif not host.services.status(host.unit).running:
        progress(f"starting {host.unit}", None, None)
        host.services.start(host.unit)
        changed.append(f"started {host.unit}")
    if changed:
        _wait_answers(host)
    return changed


def _environment(host: RouterHost, progress: Progress) -> list[str]:
    text = (wheels.engine_folder() / wheels.CPU_ENGINE / REQUIREMENTS).read_text()
    wanted = next(line.split()[0] for line in text.splitlines() if line.startswith("sglang-router"))
    if host.transport.run([host.python, "-c", CHECK]).stdout.strip() == wanted:
        return []
    progress(f"making {host.venv}", None, None)
    host.transport.run(["mkdir", "-p", posixpath.dirname(host.venv)], check=True)
    host.transport.run(["python3", "-m", "venv", host.venv], check=True, timeout_s=300)
    listed = posixpath.join(host.venv, REQUIREMENTS)
    host.transport.put_bytes(text.encode(), listed)
    env = operator_settings(same_machine=True)
    pip_install(host.transport, host.python, ["-r", listed], env=env, progress=progress)
    return [f"environment {host.venv}"]


def _wait_answers(host: RouterHost) -> None:
    end = time.monotonic() + START_S
    while not host.transport.run(["python3", "-c", ANSWERS, f"http://127.0.0.1:{host.port}/workers"]).ok:
        if time.monotonic() > end:
            last = (host.services.logs(host.unit, 5) or ["it wrote no log"])[-1]
            raise OrchestrateError(
                f"the router {host.unit} on {host.transport.host!r} does not answer after {START_S:g} s: {last[-300:]}"
            )
        time.sleep(0.2)
