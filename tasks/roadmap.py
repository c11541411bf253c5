"""The roadmap, regenerated from the store at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.report.roadmap import regenerate


class RegenerateRoadmap(Action):
    """Writes roadmap/sglang-ddtree-roadmap.md beside the inventory."""

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "the roadmap follows every run")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        written = regenerate(ctx.store, ctx.host.state_dir, run_id=ctx.run_id)
        return {"path": str(written.path), "sha256": written.sha256, "changed": written.changed}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("roadmap")
        again = regenerate(ctx.store, ctx.host.state_dir, run_id=ctx.run_id, check=True)
        said = f"{found['path']} (SHA-256 {found['sha256'][:12]})"
        return Evidence(
            "roadmap regenerated from the store", said, {"sha256": found["sha256"], "path": str(again.path)}
        )
