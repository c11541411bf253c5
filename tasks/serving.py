"""Engines that run beside the live service for a while: start, prove ready, stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import HostError
from orchestrator.graph.model import TaskContext
from orchestrator.hosts import readiness
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession
from orchestrator.openai.endpoint import Endpoint
from orchestrator.release.launch import Launch
from orchestrator.remote.services import ServiceUnit
from tasks.launch import on_port

SIDE_LIFE_S = 6 * 3600.0  # longer than any task that uses one: an operator who is lost must not leave it for ever
SIDE_PURPOSES = ("canary", "bench", "proof", "linear")


@dataclass(frozen=True)
class SideEngine:
    """An engine on a side port while a task uses it; `launch` names that port, `secrets` go into its environment."""

    name: str
    launch: Launch
    port: int
    secrets: Mapping[str, str] = field(default_factory=dict)
    after_stop: tuple[str, ...] = ()

    def unit(self, session: HostSession) -> ServiceUnit:
        return ServiceUnit(
            name=self.name,
            argv=self.launch.argv,
            env=self.launch.env,
            secret_env={**session.secret_env(), **self.secrets},
            env_files=self.launch.env_files,
            filled_in=self.launch.filled_in,
            cwd=self.launch.cwd,
            user=self.launch.user,
            description="orchestrate: side engine",
            restart="no",
            start_timeout_s=session.config.service.start_timeout_s,
            stop_timeout_s=session.config.service.stop_timeout_s,
            life_s=SIDE_LIFE_S,
            after_stop=self.after_stop,
        )


def side_port(config: HostConfig, purpose: str) -> int:
    """Ports beside the service: the canary's, and the following ones for what may run while a canary lives."""
    return config.side_port + SIDE_PURPOSES.index(purpose)


def side_name(session: HostSession, purpose: str) -> str:
    """Unit of a side engine, named after the service's."""
    stem, dot, suffix = session.unit.partition(".service")
    return f"{stem.replace('@', '-')}-{purpose}{dot}{suffix}"


def side_of(session: HostSession, purpose: str, launch: Launch) -> SideEngine:
    """A side engine named after the unit and its purpose, on the port for that purpose."""
    port = side_port(session.config, purpose)
    return SideEngine(side_name(session, purpose), on_port(launch, port), port)


def start_side(ctx: TaskContext, engine: SideEngine) -> float:
    """Install and start a side engine and wait until it is proven ready; seconds that took.

    A left-over of an interrupted attempt is removed first. On failure nothing stays behind.
    """
    session: HostSession = ctx.host
    remove_side(session, engine.name)
    readiness.require_free_port(session, engine.port, "service.canary_port")
    started = time.monotonic()
    session.services.install(engine.unit(session))
    session.services.start(engine.name)
    try:
        wait_ready(ctx, engine.name, engine.port)
    except BaseException:
        ctx.artifact(f"{engine.name}.log", "\n".join(session.services.logs(engine.name, 2000)))
        remove_side(session, engine.name)
        raise
    return time.monotonic() - started


def remove_side(session: HostSession, name: str) -> None:
    if session.services.definition(name) is not None:
        session.services.remove(name)


def main_process(session: HostSession, name: str) -> str:
    """The process that a service runs as now, for an arm's identity; HostError when it does not run."""
    status = session.services.status(name)
    if not status.running:
        raise HostError(
            f"The service {name!r} of {session.name!r} does not run any more ({status.detail or status.active}); "
            "read `orchestrate logs`, and run again once it stays."
        )
    return f"pid {status.main_pid}"


@contextlib.contextmanager
def side_engine(ctx: TaskContext, engine: SideEngine) -> Iterator[Endpoint]:
    """The address of a side engine while it runs; it is stopped and removed at the end."""
    start_side(ctx, engine)
    try:
        with ctx.host.http(engine.port) as url:
            yield url
    finally:
        ctx.artifact(f"{engine.name}.log", "\n".join(ctx.host.services.logs(engine.name, 2000)))
        remove_side(ctx.host, engine.name)


def wait_ready(ctx: TaskContext, name: str, port: int, timeout_s: float | None = None) -> int:
    """Wait until a service is proven ready, as orchestrator.hosts.readiness says; shows progress, obeys cancel."""

    def waiting(text: str, waited: float, limit: float) -> None:
        ctx.check_cancelled()
        ctx.progress(text, waited, limit)

    return readiness.wait_ready(ctx.host, name, port, timeout_s or ctx.host.config.service.start_timeout_s, waiting)
