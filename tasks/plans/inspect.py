"""The graph `inspect`: engines, models, risks and a recommendation; changes nothing."""

from __future__ import annotations

from orchestrator.graph.model import GraphSpec
from orchestrator.graph.registry import GraphRequest
from tasks.plans.deploy_ddtree import look


def build(request: GraphRequest) -> GraphSpec:
    return GraphSpec("inspect", look(), "Look at engines, models and hardware, and recommend.")
