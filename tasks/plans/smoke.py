"""The graph `smoke`: the OpenAI smoke suite against the live service."""

from __future__ import annotations

from orchestrator.graph.model import GraphSpec, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.smoke import SmokeTest


def build(request: GraphRequest) -> GraphSpec:
    task = TaskSpec("smoke", "Run OpenAI smoke test against the live service", "smoke", SmokeTest("the live service"))
    return GraphSpec("smoke", (task,), "OpenAI smoke tests of the live service.")
