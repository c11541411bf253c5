"""Taking over: a release goes live on the unit, or on one replica after the other, guarded and proven."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts import rotation
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.manifest import Manifest
from tasks.baseline import service_facts
from tasks.hostfacts import keep_deadman, keep_drift, keep_releases
from tasks.knobs import knobs_of
from tasks.planned import down_time, unit_changes
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
from tasks.samples import SAMPLE_PROMPTS, Sample, compare, default_prompts, take_samples
from tasks.serving import wait_ready

UNSETTLED = ("armed", "firing")  # states of the dead man's switch in which the host may still go back by itself
KEY = "cutover"


def is_live(session: HostSession, target: Manifest) -> bool:
    """Whether the unit runs with this release and exactly this command."""
    definition = session.services.definition(session.unit)
    defined = definition is not None and definition.release == target.id and definition.argv == target.launch.argv
    return defined and session.services.status(session.unit).running


@contextlib.contextmanager
def _said_as_gone_back(ctx: TaskContext, replica: HostSession) -> Iterator[None]:
    """What fails because the host went back meanwhile is told as that, not as a service that ended."""
    try:
        yield
    except OrchestrateError as error:
        if replica.deadman.status().state not in ("firing", "fired"):
            raise
        limit = f"{knobs_of(ctx).confirm_s:g} s"
        raise OrchestrateError(
            f"{replica.unit} was not proven within {limit}, so the host goes back by itself; raise confirm_s."
        ) from error


class TakeOver(Action):
    """The switch itself; a subclass says to what, from what, and with which outputs it is compared."""

    algorithm = ""
    condition = ""

    def missing(self, ctx: TaskContext) -> str:
        """What has to be there first and is not; empty when all is."""
        return ""

    def target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        """The release that is to be live on this replica's unit; it need not be written yet."""
        raise NotImplementedError

    def previous(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        """What serves before, and again after a failure."""
        raise NotImplementedError

    def expected(self, ctx: TaskContext) -> list[Sample]:
        """Recorded outputs that the live service must give."""
        raise NotImplementedError

    def nodes(self, ctx: TaskContext) -> int | None:
        """Tree nodes of the release; None for one without a tree."""
        return None

    def keep(self, ctx: TaskContext, target: Manifest) -> None:
        """What else is recorded of a release that was proven live."""

    def needs(self, ctx: TaskContext) -> str:
        """What the plan says of memory; empty when it is not known."""
        return ""

    def probe(self, ctx: TaskContext) -> Probe:
        missing = self.missing(ctx)
        if missing:
            return Probe(False, missing)
        for replica in ctx.host.replicas():
            target = self.target(ctx, replica)
            if not is_live(replica, target):
                return Probe(False, f"{target.id} is not live on {replica.unit}")
            if replica.deadman.status().state in UNSETTLED:
                return Probe(
                    False, f"{target.id} is live, but was never confirmed: the dead man's switch is still armed"
                )
            if not rotation.in_rotation(replica):
                return Probe(False, f"{replica.unit} gets no requests from the router")
        first = self.target(ctx, ctx.host)
        facts = service_facts(ctx.host, self.algorithm, self.nodes(ctx))
        return Probe(True, f"{first.id} is live", {"release": first.id, **facts})

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        memory = self.needs(ctx)
        changes: list[Change] = []
        for replica in ctx.host.replicas():
            target = self.target(ctx, replica)
            changes += [*unit_changes(replica, target), *rotation_changes(replica)]
            service = f"restarted as {target.id}{self.condition}; {down_time(ctx)}"
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
        facts = service_facts(ctx.host, self.algorithm, self.nodes(ctx))
        ctx.fact("service", ctx.host.name, facts)
        return {
            "release": self.target(ctx, ctx.host).id, "previous": self.previous(ctx, ctx.host).id,
            "down_s": max(down), "replicas": len(replicas), **facts,
        }  # fmt: skip

    def _take_over(self, ctx: TaskContext, replica: HostSession) -> float:
        """Make the release live on one unit, proven and confirmed; seconds in which that unit did not serve."""
        target, previous = self.target(ctx, replica), self.previous(ctx, replica)
        if is_live(replica, target) and replica.deadman.status().state not in UNSETTLED:
            rotation.put_back(replica, waiting(ctx))
            return 0.0
        if replica.number:
            record_replica(ctx, replica, previous, self.expected(ctx))
        if not replica.releases.exists(target.id):
            replica.releases.write(target)
        with out_of_rotation(ctx, replica):
            started = time.monotonic()
            token = self._switch(ctx, replica, target, previous)
            keep_deadman(ctx, replica, previous, knobs_of(ctx).confirm_s)
            with _said_as_gone_back(ctx, replica):
                wait_ready(ctx, replica.unit, replica.config.service.port, knobs_of(ctx).confirm_s)
                self._prove(ctx, replica)
            down = time.monotonic() - started
            if not replica.activation().confirm(token):
                raise OrchestrateError(f"{replica.unit} had already gone back by itself; raise confirm_s.")
            keep_deadman(ctx, replica, previous, None)
        return down

    def _switch(self, ctx: TaskContext, replica: HostSession, target: Manifest, previous: Manifest) -> str:
        """The token of the armed switch under which `target` runs now.

        An attempt that was killed may have left the switch armed: if it got as far as starting the release, this one
        goes on from there, so that the service is not restarted again; else the previous release is put back first.
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
            if algorithm != self.algorithm:
                raise OrchestrateError(f"{replica.unit} says that it runs {algorithm}, not {self.algorithm}.")
            steps += self._prove(ctx, replica)
            figures = {"algorithm": algorithm, "nodes": self.nodes(ctx), "verify_steps": steps}
            target = self.target(ctx, replica)
            replica.releases.mark_known_good(target.id, figures, ctx.run_id)
            self.keep(ctx, target)
            if not rotation.in_rotation(replica):
                raise OrchestrateError(f"{replica.unit} gets no requests from the router after the cut-over.")
        keep_releases(ctx)
        drift = keep_drift(ctx)
        count = len(ctx.host.replicas())
        where = f"port {ctx.output(KEY)['port']}" if count == 1 else f"{count} replicas behind the router"
        tree = f" with B={self.nodes(ctx)}" if self.nodes(ctx) else ""
        said = f"{self.algorithm}{tree} serves {where}; {steps} verify steps, same tokens as before"
        return Evidence("live service after the cut-over", said, {**figures, "replicas": count, "drift": drift})

    def undo(self, ctx: TaskContext) -> None:
        """Every replica is tried, whatever happened to the one before; the first problem is raised at the end."""
        problems: list[OrchestrateError] = []
        for replica in reversed(ctx.host.replicas()):
            try:
                bring_back(ctx, replica, self.previous(ctx, replica))
            except OrchestrateError as error:
                ctx.log(f"{replica.unit} is not back yet: {error}")
                problems.append(error)
        if problems:
            raise problems[0]

    def _prove(self, ctx: TaskContext, replica: HostSession) -> int:
        """Greedy samples of the live service equal the recorded ones; returns its verify steps."""
        expected = self.expected(ctx)
        with replica.http() as url:
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), max(len(one.ids) for one in expected))
        differences = compare(expected, got)
        if differences:
            raise OrchestrateError(f"{replica.unit} does not give the recorded tokens: {differences[0]}.")
        steps = sum(sample.steps for sample in got)
        if not steps:
            raise OrchestrateError(f"{replica.unit} makes no verify steps: it does not speculate.")
        return steps
