"""Roll back as a graph of its own, and the check that ends every failed deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.release.manifest import Manifest
from tasks.baseline import service_facts
from tasks.launch import algorithm_of
from tasks.linear import linear_release
from tasks.restore import prove, restore, rollback_target
from tasks.samples import SAMPLE_PROMPTS, Sample, sample_from_json
from tasks.serving import wait_ready


def expected_samples(ctx: TaskContext, release: str) -> list[Sample]:
    """The greedy outputs recorded for a linear release on this host; [] when this store never saw them."""
    fact = ctx.store.facts.latest("samples", release, ctx.host.name)
    return [sample_from_json(one) for one in fact.data["samples"][:SAMPLE_PROMPTS]] if fact else []


class RollBack(Action):
    """Back to a known-good release. `wanted` None means the newest linear one."""

    def __init__(self, wanted: str | None) -> None:
        self._wanted = wanted

    def probe(self, ctx: TaskContext) -> Probe:
        target = rollback_target(ctx.host, self._wanted)
        return Probe(False, f"{target.id} will be made live and proven")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        target = rollback_target(ctx.host, self._wanted)
        return (Change("service", ctx.host.unit, f"restarted with {target.id}"),)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        before = ctx.host.releases.current()
        target = rollback_target(ctx.host, self._wanted)
        restore(ctx.host, target, log=ctx.log)
        wait_ready(ctx, ctx.host.unit, ctx.host.config.service.port)
        return {"from": before, "to": target.id}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("rollback")
        target: Manifest = ctx.host.releases.read(str(found["to"]))
        return proof(ctx, target)


class BackAsFound(Action):
    """After a failed run: the linear service is live as found, and its environment is untouched."""

    def verify(self, ctx: TaskContext) -> Evidence:
        target = linear_release(ctx)
        if not ctx.host.services.status(ctx.host.unit).running:
            raise OrchestrateError(f"The service {ctx.host.unit!r} does not run after the rollback.")
        wait_ready(ctx, ctx.host.unit, ctx.host.config.service.port)
        return proof(ctx, target)


def proof(ctx: TaskContext, target: Manifest) -> Evidence:
    """Evidence that `target` is live: its tokens as recorded, its environment as when it was cloned."""
    expected = expected_samples(ctx, target.id)
    longest = max((len(sample.ids) for sample in expected), default=0)
    figures = prove(ctx.host, target, expected, longest)
    digest = environment_digest(ctx, target)
    algorithm = algorithm_of(target.launch.argv)
    ctx.fact("service", ctx.host.name, service_facts(ctx.host, algorithm))
    ctx.fact("release", target.id, {"id": target.id, "state": "live", "algorithm": algorithm})
    said = (
        f"{target.id} ({algorithm}) serves with pid {figures['pid']}; {figures['compared']} recorded outputs equal"
        + (", environment byte-identical" if digest else "")
    )
    return Evidence(f"live service after the rollback to {target.id}", said, {**figures, "environment_sha256": digest})


def environment_digest(ctx: TaskContext, target: Manifest) -> str | None:
    """The digest of the found environment when a release was cloned from it; an error when it differs now."""
    if target.kind != "found":
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
