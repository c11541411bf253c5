"""Seconds in which the host itself saw connections to the service's port refused, while a task changes the service."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.session import HostSession
from orchestrator.remote.script import source
from orchestrator.remote.services import ServiceUnit
from tasks.serving import remove_side, side_name


@dataclass
class Gap:
    """refused_s: None until it was read, and where it could not be measured."""

    refused_s: float | None = None


@contextlib.contextmanager
def watched(session: HostSession, limit_s: float) -> Iterator[Gap]:
    """Measures during the block. A measurement that fails stops nothing; behind a router it says nothing and is left out."""
    gap = Gap()
    if session.config.router.enabled:
        yield gap
        return
    name, path = side_name(session, "gap"), posixpath.join(session.root, "work", "gap.json")
    with contextlib.suppress(OrchestrateError):
        _begin(session, name, path, limit_s)
    try:
        yield gap
        with contextlib.suppress(OrchestrateError, OSError, ValueError):
            gap.refused_s = float(json.loads(session.transport.get_bytes(path, sudo=session.privileged))["refused_s"])
    finally:
        with contextlib.suppress(OrchestrateError):
            remove_side(session, name)


def _begin(session: HostSession, name: str, path: str, limit_s: float) -> None:
    remove_side(session, name)
    session.transport.run(["rm", "-f", path], sudo=session.privileged, check=True)
    python = session.transport.run(["/bin/sh", "-c", "command -v python3"], check=True).stdout.strip()
    wish = json.dumps({"port": session.config.service.port, "file": path, "limit_s": limit_s})
    argv = (python, "-c", source("gap").decode(), wish)
    session.services.install(ServiceUnit(name, argv, description="orchestrate: measures a gap", restart="no"))
    session.services.start(name)
