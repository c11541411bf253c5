"""The shape of a deployment with fast stand-in phases, for the crash matrix and the runner's tests."""

from __future__ import annotations

from orchestrator.graph.model import Action, GraphSpec, Outcome, TaskSpec
from tests.graph.fake_host import Break, Decide, Effect, Look, Measure, NothingLeft


def task(key: str, action: Action, *depends_on: str, changes: bool = False) -> TaskSpec:
    return TaskSpec(key, f"Stand in for {key}", "deploy", action, depends_on, changes_host=changes)


def deploy_graph(last: Action | None = None, outcome: Outcome | None = None) -> GraphSpec:
    """Eleven tasks like those of a deployment; `last` replaces the smoke test after the cut-over."""
    return GraphSpec(
        "stand-in",
        (
            task("training", Look()),
            task("inspect", Look(), "training"),
            task("vllm", Look(), "training"),
            task("baseline", Measure(), "inspect"),
            task("patch", Effect("venv", "plugin", "manifest"), "baseline", "vllm", changes=True),
            task("canary", Effect("canary"), "patch", changes=True),
            task("bench", Measure(), "canary"),
            task("decide", Decide(outcome), "bench"),
            task("cut-over", Effect("timer", "drop-in", "restart"), "decide", changes=True),
            task("smoke", last or Look(), "cut-over"),
            task("roadmap", Look(), "smoke"),
        ),
        rollback_check=NothingLeft(),
    )


SCENARIOS: dict[str, tuple[GraphSpec, int]] = {
    "adopted": (deploy_graph(), 0),
    "keep linear": (deploy_graph(outcome=Outcome(9, "measured: 0.8x", ("cut-over", "smoke"))), 9),
    "fails after the cut-over": (deploy_graph(last=Break()), 4),
}
