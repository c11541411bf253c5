"""The graph `bench`: linear against tree budgets on side engines, with a verdict and without a cut-over."""

from __future__ import annotations

from orchestrator.graph.model import GraphSpec, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.benchmark import BenchBudgets, Decide
from tasks.knobs import read_knobs
from tasks.plans.deploy_ddtree import prepare
from tasks.rollback import BackAsFound


def build(request: GraphRequest) -> GraphSpec:
    read_knobs(request.host_config, request.settings)
    record, *rest = prepare()
    tasks = (
        TaskSpec(record.key, record.content, record.phase, record.action),
        *rest,
        TaskSpec(
            "benchmark",
            "Benchmark tree budgets",
            "measure",
            BenchBudgets(),
            ("compare", "record-linear"),
            timeout_s=14400,
        ),
        TaskSpec("decide", "Say what the measurement means", "measure", Decide(), ("benchmark",)),
    )
    return GraphSpec("bench", tasks, "Paired budget sweep with a verdict.", BackAsFound())
