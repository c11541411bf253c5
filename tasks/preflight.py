"""Before anything else: the service runs, its side ports are free, and nothing foreign holds the accelerator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.hosts import readiness
from orchestrator.hosts.rotation import router_of
from orchestrator.hosts.session import HostSession
from orchestrator.remote.router import worker_url
from tasks import baseline_files
from tasks.inspecting import hardware_part
from tasks.inspecting.nvidia import Gpu, read_gpus
from tasks.inspecting.shared import quick_look
from tasks.serving import SIDE_PURPOSES, side_name, side_port


class AcceleratorFree(Action):
    """Names every process that holds GPU memory and belongs to no server (training, a notebook); never ends one.

    A host without GPU driver has no accelerator to hold: that is the evidence then. A service that does not run, a side
    port that is taken and a damaged baseline would only be noticed after changes, so they end the run (or plan) here.
    """

    def probe(self, ctx: TaskContext) -> Probe:
        baseline_files.require_whole(ctx.host.state_dir)
        return Probe(False, "who uses the accelerator is looked up in every run")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        require_service(ctx.host)
        facts, _, servers = quick_look(ctx.host)
        require_side_ports(ctx.host, facts["processes"]["listening"])
        accelerators = read_gpus(facts["commands"])
        foreign = hardware_part.foreign(facts, servers)
        if foreign:
            raise OrchestrateError(
                f"{len(foreign)} foreign job(s) hold GPU memory on {ctx.host.name!r}: {_names(foreign)}; wait for them or "
                "stop them yourself, then run again."
            )
        if accelerators.gpus:
            ctx.fact("gpu", ctx.host.name, {"gpus": [_shown(gpu) for gpu in accelerators.gpus]})
        found = {"gpus": len(accelerators.gpus), "state": accelerators.state, "servers": len(servers)}
        return {**found, "standalone": [server.standalone for server in servers if server.standalone]}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("accelerator-free")
        where = f"{found['gpus']} GPUs" if found["gpus"] else "no GPU on this host (CPU engine)"
        beside = f", left running: {', '.join(found['standalone'])}" if found.get("standalone") else ""
        said = f"{where}; {found['servers']} inference server(s){beside}, no foreign job"
        return Evidence("processes that hold accelerator memory", said, found, expires_after_s=600)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"gpus": output.get("gpus")}


def require_service(session: HostSession) -> None:
    """OrchestrateError, with what to do, unless the unit of hosts.yaml runs; with replicas all, and their router."""
    for replica in session.replicas():
        _require_running(replica)
    if session.config.router.enabled:
        with router_of(session) as router:
            listed = {worker.url for worker in router.workers()}
        missing = [one.unit for one in session.replicas() if worker_url(one.config) not in listed]
        if missing:
            raise OrchestrateError(
                f"The router on {session.name!r} does not know {', '.join(missing)}; start it with the URLs of every "
                "replica (http://ADDRESS:PORT, as router.workers and service.port in hosts.yaml say)."
            )


def _require_running(session: HostSession) -> None:
    if session.services.definition(session.unit) is None:
        raise OrchestrateError(
            f"Host {session.name!r} has no service {session.unit!r}; make the linear service first, or correct "
            "service.unit in hosts.yaml."
        )
    status = session.services.status(session.unit)
    if not status.running:
        how = f"`orchestrate hosts start {session.name}`" if session.config.transport == "embedded" else "its own tools"
        raise OrchestrateError(
            f"The service {session.unit!r} on {session.name!r} is {status.active}, not running; start it with {how}, "
            "then run again."
        )


def require_side_ports(session: HostSession, listening: Collection[int]) -> None:
    """Every port that a side engine will use is free, or used by a side engine of an earlier attempt."""
    for purpose in SIDE_PURPOSES:
        port = side_port(session.config, purpose)
        if port in listening and not session.services.status(side_name(session, purpose)).running:
            readiness.require_free_port(session, port, "service.canary_port")


def _shown(gpu: Gpu) -> dict[str, Json]:
    mib = 1 << 20
    return {
        "index": gpu.index, "name": gpu.name, "memory_total_mib": gpu.memory_bytes // mib,
        "memory_used_mib": (gpu.memory_bytes - gpu.free_bytes) // mib, "util": gpu.utilisation,
        "sm_clock_mhz": gpu.clock_mhz,
    }  # fmt: skip


def _names(processes: list[dict[str, Any]]) -> str:
    words = []
    for process in processes[:4]:
        unit = f", unit {process['unit']}" if process.get("unit") else ""
        words.append(f"{process['name']} (pid {process['pid']}{unit})")
    return ", ".join(words)
