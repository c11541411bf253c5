"""The graph `deploy-dflash`: from NEXTN, EAGLE or no speculation to a linear DFLASH service, proven and live."""

from __future__ import annotations

from orchestrator.graph.model import GraphSpec, Priority, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.dflash import PROVE, RECORD, BackToFound, ProveDflash, RecordFound, TakeOverDflash
from tasks.knobs import read_knobs
from tasks.plans.looking import look
from tasks.roadmap import RegenerateRoadmap
from tasks.takeover import KEY

SUMMARY = "Make the linear DFLASH service that deploy-ddtree starts from, with the same proofs."


def build(request: GraphRequest) -> GraphSpec:
    """The graph for one host; UsageError for settings that are wrong."""
    read_knobs(request.host_config, request.settings)
    tasks = (
        *look(),
        TaskSpec(
            RECORD, "Record the service as found as known-good (smoke, greedy output, speed)", "baseline",
            RecordFound(), ("recommend",), occupies_host=True,
        ),
        TaskSpec(PROVE, "Prove linear DFLASH on a side port", "proof", ProveDflash(), (RECORD,), changes_host=True),
        TaskSpec(
            KEY, "Cut over to linear DFLASH and verify health", "cutover", TakeOverDflash(), (PROVE, RECORD),
            changes_host=True, timeout_s=14400,
        ),
        TaskSpec("roadmap", "Regenerate the roadmap", "report", RegenerateRoadmap(), (KEY,), Priority.MEDIUM),
    )  # fmt: skip
    return GraphSpec("deploy-dflash", tasks, SUMMARY, BackToFound())
