"""Cut-over: the release takes the live service's place, guarded by the dead man's switch, and is proven."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.launch import Launch, in_environment
from orchestrator.release.manifest import Manifest
from tasks.baseline import service_facts
from tasks.knobs import knobs_of
from tasks.launch import tree_launch
from tasks.linear import linear_release
from tasks.patch import release_of
from tasks.planned import down_time, engine_memory, planned_release, unit_changes
from tasks.restore import restore
from tasks.samples import SAMPLE_PROMPTS, compare, default_prompts, sample_from_json, take_samples
from tasks.serving import wait_ready

UNSETTLED = ("armed", "firing")  # states of the dead man's switch in which the host may still go back by itself


def is_live(session: HostSession, target: Manifest) -> bool:
    """Whether the unit runs with this release and exactly this command."""
    definition = session.services.definition(session.unit)
    defined = definition is not None and definition.release == target.id and definition.argv == target.launch.argv
    return defined and session.services.status(session.unit).running


class CutOver(Action):
    """Switches the unit to the release with the decided number of nodes and proves the live service."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"nodes": self._nodes(ctx)}

    def probe(self, ctx: TaskContext) -> Probe:
        if not ctx.output("build-release"):
            return Probe(False, "the release has not been built")
        target = self._target(ctx)
        live = is_live(ctx.host, target)
        if live and ctx.host.deadman.status().state in UNSETTLED:
            return Probe(False, f"{target.id} is live, but was never confirmed: the dead man's switch is still armed")
        if live:
            facts = service_facts(ctx.host, "DDTREE", self._nodes(ctx))
            return Probe(True, f"{target.id} is live", {"release": target.id, **facts})
        return Probe(False, f"{target.id} is not live")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        target = self._launched(ctx, planned_release(ctx))
        memory = engine_memory(ctx, self._nodes(ctx))
        service = f"restarted as {target.id}, if the benchmark decides for it; {down_time(ctx)}"
        needs = (Change("process", ctx.host.unit, f"needs {memory}"),) if memory else ()
        return (*unit_changes(ctx, target), Change("service", ctx.host.unit, service), *needs)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        session = ctx.host
        target, previous = self._target(ctx), linear_release(ctx)
        session.releases.write(target)
        started = time.monotonic()
        token = self._switch(ctx, target, previous)
        ctx.fact("deadman", session.name, {"armed": True, "release": previous.id, "seconds": knobs_of(ctx).confirm_s})
        pid = wait_ready(ctx, session.unit, session.config.service.port, knobs_of(ctx).confirm_s)
        self._prove(ctx)
        down = time.monotonic() - started
        if not session.activation().confirm(token):
            raise OrchestrateError("The host had already gone back to the linear service by itself; raise confirm_s.")
        ctx.fact("deadman", session.name, {"armed": False, "release": previous.id})
        facts = service_facts(session, "DDTREE", self._nodes(ctx))
        ctx.fact("service", session.name, facts)
        return {"release": target.id, "previous": previous.id, "down_s": down, **facts, "pid": pid}

    def _switch(self, ctx: TaskContext, target: Manifest, previous: Manifest) -> str:
        """The token of the armed switch under which `target` runs now.

        An attempt that was killed may have left the switch armed: if it got as far as starting the release, this one
        goes on from there, so that the service is not restarted again; else the linear service is put back first.
        """
        session = ctx.host
        left = session.deadman.status()
        if left.state == "armed" and left.restores == previous.id and is_live(session, target):
            ctx.log(f"{target.id} was started by an attempt that was interrupted; its proof follows")
            session.releases.point_current(target.id)
            return str(left.token)
        if left.state in UNSETTLED:
            restore(session, previous, log=ctx.log)
        switched = session.activation().switch(target, previous, deadline_s=knobs_of(ctx).confirm_s, log=ctx.log)
        return str(switched.token)

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("cutover")
        with ctx.host.http() as url, Client(url) as client:
            if not client.ready():
                raise OrchestrateError("The live service does not answer a generation after the cut-over.")
            info = client.server_info()
        algorithm = str(info.get("speculative_algorithm"))
        if algorithm != "DDTREE":
            raise OrchestrateError(f"The live service says that it runs {algorithm}, not DDTREE.")
        steps = self._prove(ctx)
        figures = {"algorithm": algorithm, "nodes": self._nodes(ctx), "verify_steps": steps}
        ctx.host.releases.mark_known_good(found["release"], figures, ctx.run_id)
        ctx.fact("release", found["release"], {"id": found["release"], "state": "live", "algorithm": "DDTREE"})
        said = (
            f"DDTREE with B={figures['nodes']} serves port {found['port']}; {steps} verify steps, same tokens as linear"
        )
        return Evidence("live service after the cut-over", said, figures)

    def undo(self, ctx: TaskContext) -> None:
        restore(ctx.host, linear_release(ctx), log=ctx.log)

    def _nodes(self, ctx: TaskContext) -> int:
        return int(ctx.output("decide").get("nodes") or knobs_of(ctx).nodes)

    def _target(self, ctx: TaskContext) -> Manifest:
        """The release with the launch for the decided number of nodes."""
        return self._launched(ctx, release_of(ctx))

    def _launched(self, ctx: TaskContext, manifest: Manifest) -> Manifest:
        linear: Launch = linear_release(ctx).launch
        launch = tree_launch(linear, self._nodes(ctx), knobs_of(ctx).engine)
        venv = ctx.host.releases.layout.venv(manifest.id)
        return manifest.model_copy(update={"launch": in_environment(launch, manifest.environment.prefix, venv)})

    def _prove(self, ctx: TaskContext) -> int:
        """Greedy samples of the live service equal the recorded linear ones; returns its verify steps."""
        recorded = ctx.output("record-linear")["samples"][:SAMPLE_PROMPTS]
        expected = [sample_from_json(one) for one in recorded]
        with ctx.host.http() as url:
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), max(len(one.ids) for one in expected))
        differences = compare(expected, got)
        if differences:
            raise OrchestrateError(f"The live service does not give the linear service's tokens: {differences[0]}.")
        steps = sum(sample.steps for sample in got)
        if not steps:
            raise OrchestrateError("The live service makes no verify steps: it does not speculate.")
        return steps
