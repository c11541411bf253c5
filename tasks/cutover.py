"""Cut-over: the tree takes the linear service's place with the decided number of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.graph.model import Json, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.release.build import with_launch
from orchestrator.release.launch import in_environment
from orchestrator.release.manifest import Manifest
from tasks.knobs import knobs_of
from tasks.launch import adaptive_knobs, tree_launch
from tasks.linear import linear_release
from tasks.patch import BUILD, release_of
from tasks.planned import engine_memory, planned_release
from tasks.samples import SAMPLE_PROMPTS, Sample, sample_from_json
from tasks.takeover import TakeOver


class CutOver(TakeOver):
    """From linear DFLASH to DDTREE."""

    algorithm = "DDTREE"
    condition = ", if the benchmark decides for it"

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"nodes": self.nodes(ctx)}

    def missing(self, ctx: TaskContext) -> str:
        return "" if ctx.output(BUILD) else "the release has not been built"

    def nodes(self, ctx: TaskContext) -> int:
        return int(ctx.output("decide").get("nodes") or knobs_of(ctx).nodes)

    def needs(self, ctx: TaskContext) -> str:
        return engine_memory(ctx, self.nodes(ctx))

    def previous(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return linear_release(ctx, replica)

    def target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        """The built release; one of its own where nodes or unit are others than it was built with."""
        base = release_of(ctx) if ctx.output(BUILD) else planned_release(ctx)
        linear = linear_release(ctx, replica)
        knobs, nodes = knobs_of(ctx), self.nodes(ctx)
        adaptive = adaptive_knobs(linear.launch, nodes) if knobs.tree.adaptive else {}
        launch = tree_launch(linear.launch, nodes, {**knobs.engine, **adaptive})
        venv = replica.releases.layout.venv(base.venv_release or base.id)
        return with_launch(base, linear, in_environment(launch, linear.environment.prefix, venv), "ddtree")

    def expected(self, ctx: TaskContext) -> list[Sample]:
        return [sample_from_json(one) for one in ctx.output("record-linear")["samples"][:SAMPLE_PROMPTS]]
