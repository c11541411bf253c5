"""One inspection for the tasks of a run that need it within the same seconds, and the second look that proves each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.graph.model import Probe
from orchestrator.hosts.session import HostSession
from tasks.inspecting.inspection import Inspection, Look, Scope, asks_of, inspect_seen, look
from tasks.inspecting.nvidia import read_gpus
from tasks.inspecting.probe import read_stamps, reader


def quick_look(host: HostSession) -> Look:
    """Processes, GPUs and system without the walk over the disk, a few seconds old at most."""
    return host.recent.get(
        "quick look", lambda: look(host.transport, Scope.of(host.config), ("copies",), key=key_of(host))
    )


def shared_stamp(host: HostSession) -> str:
    """The same as long as an inspection would find the same: process, unit, packages, models, GPUs, this program."""
    return host.recent.get("stamp", lambda: _stamp(host))


def as_before(host: HostSession, earlier: Mapping[str, Any] | None) -> Probe:
    """Satisfied by an earlier inspection whose stamp is still the host's."""
    if not earlier or not earlier.get("stamp"):
        return Probe(False, "a host is looked at afresh in every run, unless it was moments ago and nothing changed")
    if earlier["stamp"] != shared_stamp(host):
        return Probe(False, "process, unit, packages, models or GPUs are not as they were when this was looked at")
    return Probe(True, "the same process runs with the same unit, packages and model files")


def _stamp(host: HostSession) -> str:
    scope, seen = Scope.of(host.config), shared_look(host)
    facts, serving, _ = seen
    runs = asdict(serving) if serving else {}
    runs.pop("resolved", None)  # the server's own word holds its momentary speed too
    units = {name: facts["commands"].get(name, {}).get("out") for name in ("unit", "unit_cat")}
    gpus = [(gpu.index, gpu.name, gpu.driver, gpu.memory_bytes) for gpu in read_gpus(facts["commands"]).gpus]
    files = read_stamps(reader(host.transport, facts), asks_of(scope, seen))
    copies = sorted((copy["package"], copy["path"], str(copy["version"])) for copy in facts["copies"])
    parts = [asdict(scope), runs, units, gpus, files, copies, metadata.version("orchestrate")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def shared_look(host: HostSession) -> Look:
    """Everything about processes, copies, GPUs and system, a few seconds old at most."""
    return host.recent.get("look", lambda: look_again(host))


def shared_inspection(host: HostSession) -> Inspection:
    """The whole inspection, a few seconds old at most."""
    scope = Scope.of(host.config)
    return host.recent.get("inspection", lambda: inspect_seen(host.transport, scope, shared_look(host)))


def look_again(host: HostSession, skip: Sequence[str] = ()) -> Look:
    """A look made now, by root at once where an earlier one needed root; `skip` as in host_side/main.py."""
    known: Look | None = host.recent.known("look") or host.recent.known("quick look")
    as_root = bool(known and known[0].get("as_root"))
    return look(host.transport, Scope.of(host.config), skip, as_root=as_root, key=key_of(host))


def key_of(host: HostSession) -> str | None:
    """The service's key; None where it cannot be had here: who only looks sees less then, and that is said."""
    try:
        return host.secret("api_key")
    except UsageError:
        return None
