"""Taking over: a release goes live on the unit, or on one replica after the other, guarded and proven."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts import rotation
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.manifest import Manifest
from tasks.baseline import service_facts
from tasks.gap import watched
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
from tasks.restore import is_live, restore
from tasks.samples import SAMPLE_PROMPTS, Sample, compare, default_prompts, take_samples
from tasks.serving import wait_ready
from tasks.standin import StandIn, stand_in_changes, stand_in_left, standing_in, why_not
from tasks.standin import remove as remove_stand_in

UNSETTLED = ("armed", "firing")  # states of the dead man's switch in which the host may still go back by itself
KEY = "cutover"


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


@dataclass(frozen=True)
class Away:
    """How a unit was away: until it was proven, how long connections were refused (None: not measured), what answered."""

    down_s: float
    refused_s: float | None
    bridged: str


def _gap(ctx: TaskContext) -> str:
    refused, bridged = ctx.output(KEY).get("refused_s"), ctx.output(KEY).get("bridged")
    return "" if refused is None else f"; connections refused for {refused:.2f} s ({bridged})"


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
            if stand_in_left(replica):
                return Probe(False, f"{target.id} is live, but the engine that stood in for it is still there")
        first = self.target(ctx, ctx.host)
        facts = service_facts(ctx.host, self.algorithm, self.nodes(ctx))
        return Probe(True, f"{first.id} is live", {"release": first.id, **facts})

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        memory = self.needs(ctx)
        why_refused = "" if ctx.host.config.router.enabled else why_not(ctx.host)
        changes: list[Change] = [*stand_in_changes(ctx.host, why_refused, memory)]
        for replica in ctx.host.replicas():
            target = self.target(ctx, replica)
            changes += [*unit_changes(replica, target), *rotation_changes(replica)]
            service = f"restarted as {target.id}{self.condition}; {down_time(ctx, why_refused)}"
            changes.append(Change("service", replica.unit, service))
            if memory:
                changes.append(Change("process", replica.unit, f"needs {memory}"))
        return changes

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        replicas = ctx.host.replicas()
        gaps: list[Away] = []
        for replica in replicas:
            ctx.check_cancelled()
            gaps.append(self._take_over(ctx, replica))
        facts = service_facts(ctx.host, self.algorithm, self.nodes(ctx))
        ctx.fact("service", ctx.host.name, facts)
        longest = max(gaps, key=lambda gap: gap.down_s)
        return {
            "release": self.target(ctx, ctx.host).id, "previous": self.previous(ctx, ctx.host).id,
            **asdict(longest), "replicas": len(replicas), **facts,
        }  # fmt: skip

    def _take_over(self, ctx: TaskContext, replica: HostSession) -> Away:
        """Make the release live on one unit, proven and confirmed."""
        target, previous = self.target(ctx, replica), self.previous(ctx, replica)
        if is_live(replica, target) and replica.deadman.status().state not in UNSETTLED:
            remove_stand_in(replica)
            rotation.put_back(replica, waiting(ctx))
            return Away(0.0, None, "the release was live already")
        if replica.number:
            record_replica(ctx, replica, previous, self.expected(ctx))
        if not replica.releases.exists(target.id):
            replica.releases.write(target)
        token = self._token_left(ctx, replica, target, previous)

        def prove(port: int) -> int:
            return self._prove(ctx, replica, port)

        with (
            out_of_rotation(ctx, replica),
            standing_in(ctx, replica, target, prove, resumed=bool(token)) as stand_in,
        ):
            return self._switch(ctx, replica, stand_in, token)

    def _switch(self, ctx: TaskContext, replica: HostSession, stand_in: StandIn, token: str) -> Away:
        """Arm, restart, prove and confirm; from `token` on where an earlier attempt came that far."""
        target, previous, confirm_s = self.target(ctx, replica), self.previous(ctx, replica), knobs_of(ctx).confirm_s
        stopped, deadline_s = time.monotonic(), confirm_s + stand_in.drain_s
        with watched(replica, 2 * deadline_s) as gap:
            if token:
                keep_deadman(ctx, replica, previous, deadline_s)
            else:
                pids = gpu_pids(replica)
                switched = replica.activation().switch(
                    target,
                    previous,
                    deadline_s=deadline_s,
                    before_stop=stand_in.take_over,
                    before_start=lambda: wait_gpu_free(ctx, replica, pids),
                    at=lambda point: keep_deadman(ctx, replica, previous, deadline_s) if point == "armed" else None,
                    log=ctx.log,
                )
                token, stopped = switched.token, switched.stopped_at
            with _said_as_gone_back(ctx, replica):
                wait_ready(ctx, replica.unit, stand_in.port, confirm_s)
                self._prove(ctx, replica, stand_in.port)
            down = time.monotonic() - stopped
            stand_in.give_back()
            if not replica.activation().confirm(token):
                raise OrchestrateError(f"{replica.unit} had already gone back by itself; raise confirm_s.")
            keep_deadman(ctx, replica, previous, None)
        return Away(down, gap.refused_s, stand_in.how())

    def _token_left(self, ctx: TaskContext, replica: HostSession, target: Manifest, previous: Manifest) -> str:
        """The token of a switch that an attempt which was killed left armed with `target` started; '' without one.

        This attempt goes on from there, so that the service is not restarted again. What got less far is taken back.
        """
        left = replica.deadman.status()
        if left.state == "armed" and left.restores == previous.id and is_live(replica, target):
            ctx.log(f"{target.id} was started by an attempt that was interrupted; its proof follows")
            replica.releases.point_current(target.id)
            return left.token
        if left.state in UNSETTLED:
            restore(replica, previous, log=ctx.log)
        return ""

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
        said = f"{self.algorithm}{tree} serves {where}; {steps} verify steps, same tokens as before{_gap(ctx)}"
        away = {name: ctx.output(KEY).get(name) for name in ("down_s", "refused_s", "bridged")}
        return Evidence("live service after the cut-over", said, {**figures, **away, "replicas": count, "drift": drift})

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

    def _prove(self, ctx: TaskContext, replica: HostSession, port: int | None = None) -> int:
        """Greedy samples of the service, or of who answers on `port`, equal the recorded ones; returns verify steps."""
        expected = self.expected(ctx)
        with replica.http(port) as url:
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), max(len(one.ids) for one in expected))
        differences = compare(expected, got)
        if differences:
            raise OrchestrateError(f"{replica.unit} does not give the recorded tokens: {differences[0]}.")
        steps = sum(sample.steps for sample in got)
        if not steps:
            raise OrchestrateError(f"{replica.unit} makes no verify steps: it does not speculate.")
        return steps
