"""Roll back as a graph of its own, and the check that ends every failed deployment."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts import rotation
from orchestrator.hosts.session import HostSession
from orchestrator.openai.client import Client
from orchestrator.release.manifest import Manifest
from orchestrator.release.settle import settle
from tasks.baseline import service_facts
from tasks.hostfacts import keep_drift, keep_releases, nodes_of
from tasks.launch import algorithm_of
from tasks.linear import linear_release
from tasks.replicas import bring_back, is_serving, rotation_changes
from tasks.restore import prove, rollback_target
from tasks.samples import SAMPLE_PROMPTS, Sample, compare, default_prompts, sample_from_json, take_samples
from tasks.serving import wait_ready
from tasks.standin import stand_in_changes, standing_in, why_not


def expected_samples(ctx: TaskContext, release: str) -> list[Sample]:
    """The greedy outputs recorded for a linear release on this host; [] when this store never saw them."""
    fact = ctx.store.facts.latest("samples", release, ctx.host.name)
    return [sample_from_json(one) for one in fact.data["samples"][:SAMPLE_PROMPTS]] if fact else []


def _answers(replica: HostSession) -> bool:
    with contextlib.suppress(OrchestrateError), replica.http() as url, Client(url) as client:
        return client.ready()
    return False


def _same_tokens(ctx: TaskContext, replica: HostSession, target: Manifest, port: int) -> None:
    """Who answers on a port gives the tokens that were recorded for a release, where any were."""
    expected = expected_samples(ctx, target.id)
    if not expected:
        return
    with replica.http(port) as url:
        got = take_samples(url, default_prompts(SAMPLE_PROMPTS), max(len(one.ids) for one in expected))
    differences = compare(expected, got)
    if differences:
        raise OrchestrateError(
            f"An engine of {target.id} on {replica.name!r} does not give its recorded tokens: {differences[0]}; the "
            "service was left as it is."
        )


class RollBack(Action):
    """Back to a known-good release, replica by replica. `wanted` None means the newest linear one."""

    def __init__(self, wanted: str | None) -> None:
        self._wanted = wanted

    def probe(self, ctx: TaskContext) -> Probe:
        target = rollback_target(ctx.host, self._wanted)
        return Probe(False, f"{target.id} will be made live and proven")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        routed = ctx.host.config.router.enabled
        why_refused = "" if routed else why_not(ctx.host)
        changes: list[Change] = [*stand_in_changes(ctx.host, why_refused, "")]
        said = f"; connections are refused meanwhile, because {why_refused}" if why_refused else ""
        for replica in ctx.host.replicas():
            target = rollback_target(replica, self._wanted)
            restarted = Change("service", replica.unit, f"restarted with {target.id}{said}")
            changes += [*rotation_changes(replica), restarted]
        return changes

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        replicas = ctx.host.replicas()
        before = ctx.host.releases.current()
        # Every way back must be known before the first replica moves.
        targets = [rollback_target(replica, self._wanted) for replica in replicas]
        for replica, target in zip(replicas, targets, strict=True):
            ctx.check_cancelled()
            self._bring_back(ctx, replica, target)
            ctx.log(f"{replica.unit} serves {target.id}")
        return {"from": before, "to": targets[0].id}

    def _bring_back(self, ctx: TaskContext, replica: HostSession, target: Manifest) -> None:
        """Where a unit without a router answers now, an engine of `target` does while that restarts."""
        settle(replica.activation(), patience_s=replica.config.service.start_timeout_s, log=ctx.log)
        if replica.config.router.enabled or is_serving(replica, target) or not _answers(replica):
            bring_back(ctx, replica, target)
            return

        def prove_side(port: int) -> None:
            _same_tokens(ctx, replica, target, port)

        with standing_in(ctx, replica, target, prove_side, resumed=False) as stand_in:
            bring_back(ctx, replica, target, stand_in)

    def verify(self, ctx: TaskContext) -> Evidence:
        return proofs(ctx, [rollback_target(replica, self._wanted) for replica in ctx.host.replicas()])


class BackAsFound(Action):
    """After a failed run: the service that ran before is live, and its environment is untouched."""

    def verify(self, ctx: TaskContext) -> Evidence:
        targets = [self._target(ctx, replica) for replica in ctx.host.replicas()]
        for replica in ctx.host.replicas():
            if not replica.services.status(replica.unit).running:
                raise OrchestrateError(f"The service {replica.unit!r} does not run after the rollback.")
            wait_ready(ctx, replica.unit, replica.config.service.port)
        return proofs(ctx, targets)

    def _target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return linear_release(ctx, replica)


def proofs(ctx: TaskContext, targets: Sequence[Manifest]) -> Evidence:
    """Evidence that each replica serves its target and gets requests; the first one's figures stand for all."""
    replicas = ctx.host.replicas()
    digests = {target.environment.prefix: target for target in reversed(targets)}
    digest = {prefix: environment_digest(ctx, target) for prefix, target in digests.items()}
    found = [
        proof(ctx, replica, target, digest[target.environment.prefix])
        for replica, target in zip(replicas, targets, strict=True)
    ]
    for replica in replicas:
        if not rotation.in_rotation(replica):
            raise OrchestrateError(f"{replica.unit} gets no requests from the router after the rollback.")
    algorithm = algorithm_of(targets[0].launch.argv)
    ctx.fact("service", ctx.host.name, service_facts(ctx.host, algorithm, nodes_of(targets[0])))
    keep_releases(ctx)
    keep_drift(ctx)
    if len(found) == 1:
        return found[0]
    said = f"{len(found)} replicas behind the router, each proven; the first: {found[0].output}"
    return Evidence(found[0].checked, said, {**found[0].data, "replicas": [one.output for one in found]})


def proof(ctx: TaskContext, replica: HostSession, target: Manifest, digest: str | None) -> Evidence:
    """Evidence that `target` is live: its tokens as recorded, its environment as when it was cloned."""
    expected = expected_samples(ctx, target.id)
    longest = max((len(sample.ids) for sample in expected), default=0)
    figures = prove(replica, target, expected, longest)
    algorithm = algorithm_of(target.launch.argv)
    said = (
        f"{target.id} ({algorithm}) serves with pid {figures['pid']}; {figures['compared']} recorded outputs equal"
        + (", environment byte-identical" if digest else "")
    )
    return Evidence(f"live service after the rollback to {target.id}", said, {**figures, "environment_sha256": digest})


def environment_digest(ctx: TaskContext, target: Manifest) -> str | None:
    """The digest of the found environment when a release was cloned from it; an error when it differs now."""
    if target.venv_release is not None:
        return None
    store = ctx.host.releases
    clones = [store.read(name) for name in store.ids()]
    recorded = [c.source_digest for c in clones if c.source_release == target.id and c.source_digest is not None]
    if not recorded:
        return None
    now = store.tree_digest(target.environment.prefix)
    if now != recorded[-1]:
        raise OrchestrateError(
            f"{target.environment.prefix} on {ctx.host.name!r} is not byte-identical to what it was before the "
            "deployment; something else changed it."
        )
    sha256: str = now.sha256
    return sha256
