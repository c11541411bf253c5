"""Cut-over: the release takes the live service's place, guarded by the dead man's switch, and is proven."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts import rotation
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.build import with_launch
from orchestrator.release.launch import in_environment
from orchestrator.release.manifest import Manifest
from tasks.baseline import service_facts
from tasks.hostfacts import keep_deadman, keep_drift, keep_releases
from tasks.knobs import knobs_of
from tasks.launch import tree_launch
from tasks.linear import linear_release
from tasks.patch import release_of
from tasks.planned import down_time, engine_memory, planned_release, unit_changes
from tasks.replicas import (
    bring_back,
    gpu_pids,
    out_of_rotation,
    record_replica,
    rotation_changes,
    wait_gpu_free,
    waiting,
)
from tasks.restore import restore
from tasks.samples import SAMPLE_PROMPTS, Sample, compare, default_prompts, sample_from_json, take_samples
from tasks.serving import wait_ready

UNSETTLED = ("armed", "firing")  # states of the dead man's switch in which the host may still go back by itself


def is_live(session: HostSession, target: Manifest) -> bool:
    """Whether the unit runs with this release and exactly this command."""
    definition = session.services.definition(session.unit)
    defined = definition is not None and definition.release == target.id and definition.argv == target.launch.argv
    return defined and session.services.status(session.unit).running


class CutOver(Action):
    """Switches the unit, or one replica after the other, to the decided number of nodes and proves the live service."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"nodes": self._nodes(ctx)}

    def probe(self, ctx: TaskContext) -> Probe:
        if not ctx.output("build-release"):
            return Probe(False, "the release has not been built")
        for replica in ctx.host.replicas():
            target = self._target(ctx, replica, release_of(ctx))
            if not is_live(replica, target):
                return Probe(False, f"{target.id} is not live on {replica.unit}")
            if replica.deadman.status().state in UNSETTLED:
                return Probe(
                    False, f"{target.id} is live, but was never confirmed: the dead man's switch is still armed"
                )
            if not rotation.in_rotation(replica):
                return Probe(False, f"{replica.unit} gets no requests from the router")
        first = self._target(ctx, ctx.host, release_of(ctx))
        facts = service_facts(ctx.host, "DDTREE", self._nodes(ctx))
        return Probe(True, f"{first.id} is live", {"release": first.id, **facts})

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        memory = engine_memory(ctx, self._nodes(ctx))
        changes: list[Change] = []
        for replica in ctx.host.replicas():
            target = self._target(ctx, replica, planned_release(ctx))
            changes += [*unit_changes(replica, target), *rotation_changes(replica)]
            service = f"restarted as {target.id}, if the benchmark decides for it; {down_time(ctx)}"
            changes.append(Change("service", replica.unit, service))
            if memory:
                changes.append(Change("process", replica.unit, f"needs {memory}"))
        return changes

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        replicas = ctx.host.replicas()
        down = []
        for replica in replicas:
            ctx.check_cancelled()
            down.append(self._take_over(ctx, replica))
        facts = service_facts(ctx.host, "DDTREE", self._nodes(ctx))
        ctx.fact("service", ctx.host.name, facts)
        return {
            "release": self._target(ctx, ctx.host, release_of(ctx)).id, "previous": linear_release(ctx).id,
            "down_s": max(down), "replicas": len(replicas), **facts,
        }  # fmt: skip

    def _take_over(self, ctx: TaskContext, replica: HostSession) -> float:
        """Make the release live on one unit, proven and confirmed; seconds in which that unit did not serve."""
        target, previous = self._target(ctx, replica, release_of(ctx)), linear_release(ctx, replica)
        if is_live(replica, target) and replica.deadman.status().state not in UNSETTLED:
            rotation.put_back(replica, waiting(ctx))
            return 0.0
        if replica.number:
            record_replica(ctx, replica, previous, recorded(ctx))
        if not replica.releases.exists(target.id):
            replica.releases.write(target)
        with out_of_rotation(ctx, replica):
            started = time.monotonic()
            token = self._switch(ctx, replica, target, previous)
            keep_deadman(ctx, replica, previous, knobs_of(ctx).confirm_s)
            wait_ready(ctx, replica.unit, replica.config.service.port, knobs_of(ctx).confirm_s)
            self._prove(ctx, replica)
            down = time.monotonic() - started
            if not replica.activation().confirm(token):
                raise OrchestrateError(
                    f"{replica.unit} had already gone back to the linear service by itself; raise confirm_s."
                )
            keep_deadman(ctx, replica, previous, None)
        return down

    def _switch(self, ctx: TaskContext, replica: HostSession, target: Manifest, previous: Manifest) -> str:
        """The token of the armed switch under which `target` runs now.

        An attempt that was killed may have left the switch armed: if it got as far as starting the release, this one
        goes on from there, so that the service is not restarted again; else the linear service is put back first.
        """
        left = replica.deadman.status()
        if left.state == "armed" and left.restores == previous.id and is_live(replica, target):
            ctx.log(f"{target.id} was started by an attempt that was interrupted; its proof follows")
            replica.releases.point_current(target.id)
            return str(left.token)
        if left.state in UNSETTLED:
            restore(replica, previous, log=ctx.log)
        pids = gpu_pids(replica)
        switched = replica.activation().switch(
            target,
            previous,
            deadline_s=knobs_of(ctx).confirm_s,
            before_start=lambda: wait_gpu_free(ctx, replica, pids),
            log=ctx.log,
        )
        return str(switched.token)

    def verify(self, ctx: TaskContext) -> Evidence:
        steps = 0
        for replica in ctx.host.replicas():
            with replica.http() as url, Client(url) as client:
                if not client.ready():
                    raise OrchestrateError(f"{replica.unit} does not answer a generation after the cut-over.")
                algorithm = str(client.server_info().get("speculative_algorithm"))
            if algorithm != "DDTREE":
                raise OrchestrateError(f"{replica.unit} says that it runs {algorithm}, not DDTREE.")
            steps += self._prove(ctx, replica)
            figures = {"algorithm": algorithm, "nodes": self._nodes(ctx), "verify_steps": steps}
            target = self._target(ctx, replica, release_of(ctx))
            replica.releases.mark_known_good(target.id, figures, ctx.run_id)
            if not rotation.in_rotation(replica):
                raise OrchestrateError(f"{replica.unit} gets no requests from the router after the cut-over.")
        keep_releases(ctx)
        drift = keep_drift(ctx)
        count = len(ctx.host.replicas())
        where = f"port {ctx.output('cutover')['port']}" if count == 1 else f"{count} replicas behind the router"
        said = f"DDTREE with B={figures['nodes']} serves {where}; {steps} verify steps, same tokens as linear"
        return Evidence("live service after the cut-over", said, {**figures, "replicas": count, "drift": drift})

    def undo(self, ctx: TaskContext) -> None:
        for replica in reversed(ctx.host.replicas()):
            bring_back(ctx, replica, linear_release(ctx, replica))

    def _nodes(self, ctx: TaskContext) -> int:
        return int(ctx.output("decide").get("nodes") or knobs_of(ctx).nodes)

    def _target(self, ctx: TaskContext, replica: HostSession, base: Manifest) -> Manifest:
        """`base` with the decided number of nodes on the unit of a replica: a release of its own where that differs."""
        linear = linear_release(ctx, replica)
        launch = tree_launch(linear.launch, self._nodes(ctx), knobs_of(ctx).engine)
        venv = replica.releases.layout.venv(base.venv_release or base.id)
        return with_launch(base, linear, in_environment(launch, linear.environment.prefix, venv), "ddtree")

    def _prove(self, ctx: TaskContext, replica: HostSession) -> int:
        """Greedy samples of the live service equal the recorded linear ones; returns its verify steps."""
        expected = recorded(ctx)
        with replica.http() as url:
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), max(len(one.ids) for one in expected))
        differences = compare(expected, got)
        if differences:
            raise OrchestrateError(f"{replica.unit} does not give the linear service's tokens: {differences[0]}.")
        steps = sum(sample.steps for sample in got)
        if not steps:
            raise OrchestrateError(f"{replica.unit} makes no verify steps: it does not speculate.")
        return steps


def recorded(ctx: TaskContext) -> list[Sample]:
    """The outputs of the linear service with which every engine is compared."""
    return [sample_from_json(one) for one in ctx.output("record-linear")["samples"][:SAMPLE_PROMPTS]]
