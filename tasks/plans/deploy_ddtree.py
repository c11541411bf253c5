"""The graph `deploy-ddtree`: from a linear DFLASH service to DDTREE, proven and live, or to the proof that it does not pay."""

from __future__ import annotations

from orchestrator.graph.model import GraphSpec, Priority, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.baseline import RecordLinear
from tasks.benchmark import BenchBudgets, Decide
from tasks.cutover import CutOver
from tasks.deploy import Canary, RetireCanary, canary_url
from tasks.knobs import read_knobs
from tasks.parity import CompareWithLinear
from tasks.patch import BuildRelease, SelfTest
from tasks.plans.looking import look
from tasks.roadmap import RegenerateRoadmap
from tasks.rollback import BackAsFound
from tasks.smoke import SmokeTest

SUMMARY = "Inspect, patch a clone, prove it against the linear service, benchmark, and adopt or keep linear."


def build(request: GraphRequest) -> GraphSpec:
    """The graph for one host; UsageError for settings that are wrong."""
    read_knobs(request.host_config, request.settings)
    return GraphSpec("deploy-ddtree", (*look(), *prepare(), *measure(), *finish()), SUMMARY, BackAsFound())


def prepare() -> tuple[TaskSpec, ...]:
    """The baseline, the release and its proofs."""
    return (
        TaskSpec(
            "record-linear", "Record the linear service as known-good (smoke, acceptance, speed)", "baseline",
            RecordLinear(), ("recommend",), occupies_host=True,
        ),
        TaskSpec(
            "build-release", "Build the patched release", "build", BuildRelease(), ("record-linear",), changes_host=True
        ),
        TaskSpec(
            "selftest", "Self-test the patched engine", "build", SelfTest(), ("build-release",), occupies_host=True
        ),
        TaskSpec(
            "compare", "Compare output and acceptance with the linear service", "proof",
            CompareWithLinear(), ("selftest", "record-linear"), occupies_host=True,
        ),
    )  # fmt: skip


def measure() -> tuple[TaskSpec, ...]:
    """The canary, its smoke tests and the paired sweep."""
    return (
        TaskSpec(
            "canary",
            "Deploy as canary on a side port",
            "canary",
            Canary(),
            ("compare", "build-release"),
            changes_host=True,
        ),
        TaskSpec(
            "smoke",
            "Run OpenAI smoke test",
            "canary",
            SmokeTest("the canary", "canary", canary_url),
            ("canary",),
            occupies_host=True,
        ),
        TaskSpec(
            "benchmark",
            "Benchmark tree budgets",
            "measure",
            BenchBudgets(),
            ("smoke", "record-linear"),
            occupies_host=True,
            timeout_s=14400,
        ),
        TaskSpec(
            "decide", "Decide: adopt, keep linear, or inconclusive", "measure", Decide(("cutover",)), ("benchmark",)
        ),
    )


def finish() -> tuple[TaskSpec, ...]:
    """The canary goes; the release goes live if it was adopted; the roadmap follows."""
    return (
        TaskSpec(
            "retire-canary",
            "Stop the canary and free its memory",
            "cutover",
            RetireCanary(),
            ("decide",),
            changes_host=True,
        ),
        TaskSpec(
            "cutover",
            "Cut over and verify health",
            "cutover",
            CutOver(),
            ("retire-canary", "decide"),
            changes_host=True,
            timeout_s=14400,  # one replica after the other, and each may take minutes to load its model
        ),
        TaskSpec(
            "roadmap", "Regenerate the roadmap", "report", RegenerateRoadmap(), ("cutover", "decide"), Priority.MEDIUM
        ),
    )
