"""One inspection for the tasks of a run that need it within the same seconds, and the second look that proves each."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.hosts.session import HostSession
from tasks.inspecting.inspection import Inspection, Look, Scope, inspect_seen, look


def shared_look(host: HostSession) -> Look:
    """Everything about processes, copies, GPUs and system, a few seconds old at most."""
    return host.recent.get("look", lambda: look(host.transport, Scope.of(host.config)))


def shared_inspection(host: HostSession) -> Inspection:
    """The whole inspection, a few seconds old at most."""
    scope = Scope.of(host.config)
    return host.recent.get("inspection", lambda: inspect_seen(host.transport, scope, shared_look(host)))


def look_again(host: HostSession, skip: Sequence[str] = ()) -> Look:
    """A look made now, by root at once where the shared one needed root; `skip` as in host_side/main.py."""
    known: Look | None = host.recent.known("look")
    return look(host.transport, Scope.of(host.config), skip, as_root=bool(known and known[0].get("as_root")))
