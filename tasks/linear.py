"""The linear service: what it is as found, and an engine of it to measure against, live or beside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.openai.endpoint import Endpoint
from orchestrator.release.found import ancestors, find_service
from orchestrator.release.manifest import Manifest
from tasks.launch import algorithm_of
from tasks.serving import main_process, side_engine, side_of, wait_ready


@dataclass(frozen=True)
class LinearEngine:
    """A running linear DFLASH engine. `unit` is its service; `may_flush` says whether its cache is ours alone."""

    session: HostSession
    unit: str
    url: Endpoint
    may_flush: bool

    def identity(self) -> str:
        """As which process it runs now, asked from the host; HostError when it, or the way to the host, is gone."""
        return main_process(self.session, self.unit)


def linear_release(ctx: TaskContext, replica: HostSession | None = None) -> Manifest:
    """The linear DFLASH service as a release, also while a tree made from it is live on its unit.

    That is the service as found, or the release that `deploy-dflash` made. A plan has no run, and leaves nothing on
    the host.
    """
    session: HostSession = replica or ctx.host
    definition = session.services.definition(session.unit)
    live = definition.release if definition is not None and definition.overridden else going_back_to(session)
    for manifest in ancestors(session.releases, live):
        if algorithm_of(manifest.launch.argv) == "DFLASH":
            return manifest
    manifest = found_release(ctx, session)
    algorithm = algorithm_of(manifest.launch.argv)
    if algorithm != "DFLASH":
        raise OrchestrateError(
            f"The service {session.unit!r} on {session.name!r} runs {algorithm}, not linear DFLASH; "
            "`orchestrate run deploy-dflash` makes that first."
        )
    return manifest


def found_release(ctx: TaskContext, session: HostSession) -> Manifest:
    """The service as it was found, whatever it runs."""
    for manifest in ancestors(session.releases, going_back_to(session)):
        if manifest.kind == "found":
            return manifest
    port = session.config.service.port
    return find_service(
        session.releases, session.services, session.unit, port,
        run_id=ctx.run_id, keep=bool(ctx.run_id), recent=session.recent,
    )  # fmt: skip


def going_back_to(session: HostSession) -> str | None:
    """The release that the host brings back by itself: in the middle of a switch nothing may serve that could be asked."""
    status = session.deadman.status()
    return status.restores if status.state in ("armed", "firing") else None


def live_is_linear(session: HostSession) -> bool:
    """Whether the unit runs linear DFLASH now."""
    definition = session.services.definition(session.unit)
    linear = definition is not None and algorithm_of(definition.argv) == "DFLASH"
    return linear and session.services.status(session.unit).running


@contextlib.contextmanager
def linear_engine(ctx: TaskContext) -> Iterator[LinearEngine]:
    """The live service when it is linear, else a linear engine on a side port for as long as it is needed."""
    session: HostSession = ctx.host
    embedded = session.config.transport == "embedded"
    if live_is_linear(session):
        wait_ready(ctx, session.unit, session.config.service.port)  # it may still be loading its model
        with session.http() as url:
            yield LinearEngine(session, session.unit, url, may_flush=embedded)
        return
    engine = side_of(session, "linear", linear_release(ctx).launch)
    with side_engine(ctx, engine) as url:
        yield LinearEngine(session, engine.name, url, may_flush=True)
