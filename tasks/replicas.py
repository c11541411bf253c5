"""The replicas of a host, switched one by one: out of the router, drained, switched, proven, back in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Change, TaskContext
from orchestrator.hosts import rotation
from orchestrator.hosts.session import HostSession
from orchestrator.release.manifest import Manifest
from orchestrator.remote import gpus
from orchestrator.remote.processes import processes
from orchestrator.remote.router import Waiting, worker_url
from tasks.restore import Meanwhile, is_live, restore
from tasks.samples import SAMPLE_PROMPTS, Sample, compare, default_prompts, take_samples
from tasks.serving import wait_ready
from tasks.standin import StandIn
from tasks.standin import remove as remove_stand_in

GPU_FREE_S = 300.0


def waiting(ctx: TaskContext) -> Waiting:
    """Progress for whoever waits; obeys cancel."""

    def show(text: str, waited: float, limit: float) -> None:
        ctx.check_cancelled()
        ctx.progress(text, waited, limit)

    return show


@contextlib.contextmanager
def out_of_rotation(ctx: TaskContext, replica: HostSession) -> Iterator[None]:
    """No request reaches the replica during the block. After a failure it stays out, until it was restored.

    Without an operator the host itself ends that: by its guard until the dead man's switch is armed, then by the switch.
    """
    rotation.take_out(replica, waiting(ctx))
    if replica.config.router.enabled:
        ctx.log(f"{replica.unit} left the router, and nothing runs on it any more")
    yield
    rotation.put_back(replica, waiting(ctx))
    if replica.config.router.enabled:
        ctx.log(f"{replica.unit} is back behind the router")


def bring_back(ctx: TaskContext, replica: HostSession, target: Manifest, stand_in: StandIn | None = None) -> None:
    """Make `target` serve on a replica again, with requests away from it meanwhile; nothing when it serves already.

    A router that is gone or has no other replica left must not keep the service from coming back: it goes on without.
    """
    if is_serving(replica, target) and rotation.in_rotation(replica):
        return
    if not is_serving(replica, target):
        try:
            rotation.take_out(replica, waiting(ctx), unguarded=ctx.log)
        except OrchestrateError as error:
            ctx.log(f"{replica.unit} is restored without waiting for its requests: {error}")
        restore(replica, target, log=ctx.log, meanwhile=_meanwhile(ctx, replica, stand_in))
    wait_ready(ctx, replica.unit, replica.config.service.port)
    if stand_in is None:
        remove_stand_in(replica)
    rotation.put_back(replica, waiting(ctx))


def _meanwhile(ctx: TaskContext, replica: HostSession, stand_in: StandIn | None) -> Meanwhile:
    pids = gpu_pids(replica)
    longer = GPU_FREE_S if pids else 0.0

    def free() -> None:
        wait_gpu_free(ctx, replica, pids)

    if stand_in is None or stand_in.bridge is None:
        return Meanwhile(before_start=free, longer_s=longer)

    def answering() -> None:
        wait_ready(ctx, replica.unit, stand_in.port)
        stand_in.give_back()

    longer += stand_in.drain_s + replica.config.service.start_timeout_s
    return Meanwhile(stand_in.take_over, free, answering, longer)


def is_serving(replica: HostSession, target: Manifest) -> bool:
    """Whether the unit runs this release and nothing is left to settle."""
    settled = replica.deadman.status().state not in ("armed", "firing", "failed")
    return settled and replica.releases.current() == target.id and is_live(replica, target)


def rotation_changes(replica: HostSession) -> tuple[Change, ...]:
    """What a plan says of a replica's way out of the router and back; empty on a host without one."""
    if not replica.config.router.enabled:
        return ()
    router = replica.config.router
    said = (
        f"takes {worker_url(replica.config)} out, waits at most {router.drain_timeout_s:g} s until nothing runs there, "
        f"puts it back; without a word from here for {router.rejoin_after_s:g} s the host does"
    )
    return (Change("service", f"{replica.config.router_unit}, {replica.unit}", said),)


def record_replica(ctx: TaskContext, replica: HostSession, before: Manifest, expected: list[Sample]) -> None:
    """Prove what another replica serves with the recorded tokens before it is switched: its way back is known-good."""
    known = {one.release for one in replica.releases.known_good()}
    if before.id in known or not is_serving(replica, before):
        return
    prompts = default_prompts(SAMPLE_PROMPTS)
    with replica.http() as url:
        got = take_samples(url, prompts, max(len(one.ids) for one in expected))
    differences = compare(expected, got)
    if differences:
        raise OrchestrateError(
            f"{replica.unit} does not give the tokens of {ctx.host.unit}: {differences[0]}; replicas must serve the "
            "same models with the same settings."
        )
    replica.releases.mark_known_good(before.id, {"compared": len(got), "unit": replica.unit}, ctx.run_id)
    ctx.fact("samples", before.id, {"samples": [sample.to_json() for sample in got]})


def gpu_pids(session: HostSession) -> list[int]:
    """Processes of the service that hold GPU memory now; [] on a host without GPUs."""
    main = session.services.status(session.unit).main_pid
    found = gpus.holders(session.transport, sudo=session.privileged)
    if not found or not main:
        return []
    sessions = {one.sid for one in processes(session.transport, [main], sudo=session.privileged)}
    return [
        one.pid
        for one in found
        if one.pid == main or (one.process and (one.process.unit == session.unit or one.process.sid in sessions))
    ]


def wait_gpu_free(ctx: TaskContext, session: HostSession, pids: list[int]) -> None:
    """After the service was stopped: until none of its processes holds GPU memory any more."""
    if pids:
        ctx.log(f"waiting until {len(pids)} processes of {session.unit} have freed their GPU memory")
        gpus.wait_free(
            session.transport, pids, GPU_FREE_S, sudo=session.privileged, check_cancelled=ctx.check_cancelled
        )
