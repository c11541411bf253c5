"""The canary: the patched release on a side port while the live service goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.openai.endpoint import Endpoint
from tasks.knobs import knobs_of
from tasks.patch import BUILD, tree_engine
from tasks.planned import engine_memory
from tasks.serving import SideEngine, remove_side, side_engine, side_name, side_port, start_side


class Canary(Action):
    """Starts the release beside the live service; it stays until the decision has been made."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"nodes": knobs_of(ctx).nodes}

    def probe(self, ctx: TaskContext) -> Probe:
        if not ctx.output(BUILD):
            return Probe(False, "the release has not been built")
        engine = self._engine(ctx)
        definition = ctx.host.services.definition(engine.name)
        if definition is not None and definition.argv == engine.launch.argv:
            status = ctx.host.services.status(engine.name)
            if status.running:
                return Probe(True, f"the canary runs (pid {status.main_pid})", _facts(ctx, engine))
        if definition is None and ctx.earlier is not None:
            return Probe(True, "a canary of this release was proven here and retired after the decision")
        return Probe(False, "no canary of this release runs")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        name, port = side_name(ctx.host, "canary"), side_port(ctx.host.config, "canary")
        memory = engine_memory(ctx, knobs_of(ctx).nodes)
        needs = (Change("process", name, f"needs {memory}, beside the live service"),) if memory else ()
        return (Change("service", name, f"a canary of the release on port {port}, removed after the decision"), *needs)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        engine = self._engine(ctx)
        seconds = start_side(ctx, engine)
        ctx.log(f"the canary answers on port {engine.port} after {seconds:.1f} s")
        return {**_facts(ctx, engine), "start_s": round(seconds, 1)}

    def verify(self, ctx: TaskContext) -> Evidence:
        engine = self._engine(ctx)
        with ctx.host.http(engine.port) as url, Client(url) as client:
            info = client.server_info()
            algorithm = str(info.get("speculative_algorithm") or "")
            width = info.get("speculative_num_draft_tokens")
        nodes = knobs_of(ctx).nodes
        if algorithm.upper() != "DDTREE" or width != nodes + 1:
            raise ValueError(f"the canary says algorithm {algorithm!r}, width {width}, not DDTREE, {nodes + 1}")
        said = f"DDTREE with B={nodes} answers on port {engine.port}"
        return Evidence(
            "server info of the canary", said, {"algorithm": algorithm, "width": width, "port": engine.port}
        )

    def undo(self, ctx: TaskContext) -> None:
        remove_canary(ctx.host)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"nodes": output.get("nodes"), "release": output.get("release")}

    def _engine(self, ctx: TaskContext) -> SideEngine:
        return tree_engine(ctx, "canary", knobs_of(ctx).nodes)


@contextlib.contextmanager
def canary_url(ctx: TaskContext) -> Iterator[Endpoint]:
    """The canary's address; where an earlier run retired it already, it runs again for as long as it is needed."""
    engine = tree_engine(ctx, "canary", knobs_of(ctx).nodes)
    if ctx.host.services.status(engine.name).running:
        with ctx.host.http(engine.port) as url:
            yield url
        return
    with side_engine(ctx, engine) as url:
        yield url


def _facts(ctx: TaskContext, engine: SideEngine) -> dict[str, Json]:
    return {
        "release": ctx.output(BUILD).get("release"),
        "nodes": knobs_of(ctx).nodes,
        "unit": engine.name,
        "port": engine.port,
        "pid": ctx.host.services.status(engine.name).main_pid,
    }


def remove_canary(session: HostSession) -> None:
    remove_side(session, side_name(session, "canary"))


class RetireCanary(Action):
    """Stops and removes the canary once it has served its purpose."""

    def probe(self, ctx: TaskContext) -> Probe:
        if ctx.host.services.definition(side_name(ctx.host, "canary")) is None:
            return Probe(True, "there is no canary", {"removed": False})
        return Probe(False, "the canary still runs")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        return (Change("service", side_name(ctx.host, "canary"), "stopped and removed"),)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        remove_canary(ctx.host)
        return {"removed": True}

    def verify(self, ctx: TaskContext) -> Evidence:
        name = side_name(ctx.host, "canary")
        if ctx.host.services.definition(name) is not None:
            raise ValueError(f"the unit {name} is still there")
        return Evidence(f"unit {name}", "no canary unit is left on the host")
