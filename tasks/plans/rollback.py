"""The graph `rollback`: the unit goes back to a known-good release, and the result is proven."""

from __future__ import annotations

from orchestrator.graph.model import GraphSpec, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.rollback import RollBack


def build(request: GraphRequest) -> GraphSpec:
    wanted = request.settings.get("to") or request.options.get("to")
    task = TaskSpec(
        "rollback", f"Roll back to {wanted or 'the last known-good linear service'} and prove it", "rollback",
        RollBack(wanted), changes_host=True,
    )  # fmt: skip
    return GraphSpec("rollback", (task,), "Back to a known-good release, proven.")
