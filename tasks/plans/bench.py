"""The graph `bench`: linear against tree budgets on side engines, with a verdict and without a cut-over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.bench.prompts import load_prompts
from orchestrator.graph.model import GraphSpec, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.benchmark import BenchBudgets, Decide
from tasks.inspect_model import InspectModel
from tasks.knobs import read_knobs
from tasks.oracle import LIMIT_S, RunOracle
from tasks.other_server import FIND, BenchServer, FindServer
from tasks.plans.deploy_ddtree import prepare
from tasks.regression import HoldAgainst, skip_reason
from tasks.rollback import BackAsFound
from tasks.samples import RECORDED_PROMPTS, default_prompts


def build(request: GraphRequest) -> GraphSpec:
    """The sweep, or with the option `oracle` what can be said before deploying."""
    knobs = read_knobs(request.host_config, request.settings)
    if request.options.get("oracle"):
        return _oracle(request)
    if knobs.tree_server:
        return _of_other_server()
    record, *rest = prepare()
    sweep = _sweep(BenchBudgets(), "Benchmark tree budgets", "compare")
    tasks = (replace(record, depends_on=()), *rest, *sweep)
    return GraphSpec("bench", tasks, "Paired budget sweep with a verdict.", BackAsFound())


def _of_other_server() -> GraphSpec:
    record, *_ = prepare()
    find = TaskSpec("find-server", "Find the tree server that was started by hand", "inspect", FindServer())
    sweep = _sweep(BenchServer(), "Benchmark that server against the linear service", FIND)
    tasks = (find, replace(record, depends_on=(FIND,)), *sweep)
    return GraphSpec("bench", tasks, "Paired sweep of a server that runs already, which is left running.")


def _sweep(action: BenchBudgets, said: str, after: str) -> tuple[TaskSpec, ...]:
    return (
        TaskSpec(
            "benchmark",
            said,
            "measure",
            action,
            (after, "record-linear"),
            occupies_host=True,
            timeout_s=14400,
        ),
        TaskSpec("decide", "Say what the measurement means", "measure", Decide(), ("benchmark",)),
        TaskSpec(
            "hold-against",
            "Hold the sweep against an earlier one",
            "measure",
            HoldAgainst(),
            ("benchmark", "decide"),
            condition=skip_reason,
        ),
    )


def _oracle(request: GraphRequest) -> GraphSpec:
    path = request.options.get("prompts")
    prompts = load_prompts(Path(path)) if path else default_prompts(RECORDED_PROMPTS)
    action = RunOracle(prompts, str(path or "the project's own prompts"), request.options.get("device"))
    tasks = (
        TaskSpec("inspect-model", "Check target and draft model compatibility", "inspect", InspectModel()),
        TaskSpec(
            "oracle", "Measure acceptance offline and say whether a tree is worth it", "measure", action,
            ("inspect-model",), occupies_host=True, timeout_s=LIMIT_S,
        ),
    )  # fmt: skip
    return GraphSpec("bench", tasks, "What chain and trees would accept, without any tree engine.")
