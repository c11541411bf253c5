"""The first use of an embedded host: its own environment, a trained pair and a linear service; later uses change nothing."""

from __future__ import annotations

import hashlib
import json
import posixpath

from orchestrator.errors import UsageError
from orchestrator.hosts.lock import lock_status
from orchestrator.hosts.readiness import require_free_port, wait_ready
from orchestrator.hosts.session import HostSession
from orchestrator.release import wheels
from orchestrator.remote.pip import Progress
from orchestrator.remote.provision_cpu import (
    CpuHost,
    linear_unit,
    provision_environment,
    provision_models,
    provision_service,
)
from orchestrator.remote.provision_router import REQUIREMENTS, RouterHost, provision_router, router_service
from orchestrator.remote.router import worker_url
from orchestrator.transport.embedded import embedded_folder
from orchestrator.wholefile import alone_in

STAMP = ".orchestrate/first-use.json"


def is_embedded_cpu(session: HostSession) -> bool:
    return session.config.transport == "embedded" and session.config.engine == "sglang-cpu"


def cpu_host(session: HostSession) -> CpuHost:
    """What provisioning needs, from the inventory; UsageError unless hosts.yaml names a shipped pair."""
    config = session.config
    if not isinstance(config.model, str):
        raise UsageError(f"hosts.{session.name}.model: the embedded CPU host serves a shipped pair, give its name.")
    return CpuHost(
        transport=session.transport,
        services=session.services,
        home=session.home,
        unit=session.unit,
        port=config.service.port,
        pair=config.model,
        args=config.service.args,
        stop_timeout_s=config.service.stop_timeout_s,
    )


def router_host(session: HostSession) -> RouterHost:
    """What provisioning the router in front of the replicas needs, from the inventory."""
    router = session.config.router
    urls = [worker_url(replica.config) for replica in session.replicas()]
    unit = session.config.router_unit
    return RouterHost(session.transport, session.services, session.home, unit, router.port, urls, router.policy)


def provision_services(session: HostSession, progress: Progress, *, restart: bool) -> list[str]:
    """The linear service, or all replicas of it and the router in front of them; started and ready."""
    changed = []
    for replica in session.replicas():
        changed += provision_service(cpu_host(replica), progress, restart=restart)
    for replica in session.replicas():
        service = replica.config.service
        wait_ready(replica, replica.unit, service.port, service.start_timeout_s, progress)
    if session.config.router.enabled:
        changed += provision_router(router_host(session), progress)
    return changed


def first_use(session: HostSession, progress: Progress) -> list[str]:
    """Provision the host unless that was completed before with the same engine, pair and arguments.

    Returns what was changed. A service that a person stopped afterwards is left stopped: tasks say so. Another process
    that uses the host for the first time is waited for, since two of them would install into one environment, and a
    host on which a run works is not provisioned anew under it.
    """
    wanted = _wanted(session)
    path = posixpath.join(session.home, STAMP)
    made = _read(session, path)
    if made == wanted:
        return []
    if made is not None and lock_status(session.releases) is not None:
        progress("left as it is while a run works there, although the engine's sources changed", None, None)
        return []

    def waiting() -> None:
        progress("waiting for another process that makes this host ready", None, None)

    with alone_in(embedded_folder(session.state_dir, session.name), waiting):
        return [] if _read(session, path) == wanted else _provision(session, progress, wanted, path)


def _provision(session: HostSession, progress: Progress, wanted: str, path: str) -> list[str]:
    """Make all of it so, and stamp it with what was wanted."""
    for replica in session.replicas():
        if not replica.services.status(replica.unit).running:
            require_free_port(replica, replica.config.service.port, "service.port")
    if session.config.router.enabled and not session.services.status(session.config.router_unit).running:
        require_free_port(session, session.config.router.port, "router.port")
    host = cpu_host(session)
    changed = provision_environment(host, session.wheel_dir, progress) + provision_models(host, progress)
    changed += provision_services(session, progress, restart=bool(changed))
    session.transport.run(["mkdir", "-p", posixpath.dirname(path)], check=True)
    session.transport.put_bytes(json.dumps({"wanted": wanted}).encode(), path)
    return changed


def _wanted(session: HostSession) -> str:
    engine = wheels.engine_folder()
    parts = [
        (engine / wheels.CPU_ENGINE / name).read_text() for name in ("requirements.txt", "requirements-nodeps.txt")
    ]
    parts.append(wheels.source_hash(engine / wheels.CPU_ENGINE))
    parts.append(wheels.source_hash(engine / "models" / str(session.config.model)))
    parts += [repr(linear_unit(cpu_host(replica))) for replica in session.replicas()]
    if session.config.router.enabled:
        parts.append((engine / wheels.CPU_ENGINE / REQUIREMENTS).read_text())
        parts.append(repr(router_service(router_host(session))))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(session: HostSession, path: str) -> str | None:
    try:
        document = json.loads(session.transport.get_bytes(path))
    except (FileNotFoundError, ValueError):
        return None
    return str(document.get("wanted")) if isinstance(document, dict) else None
