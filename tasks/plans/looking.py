"""The tasks with which graphs begin: what is on the host. Apart from the rest, whose libraries an inspection would load in vain."""

from __future__ import annotations

from orchestrator.graph.model import Priority, TaskSpec
from tasks.inspect_model import InspectModel
from tasks.inspect_sglang import InspectSglang
from tasks.inspect_vllm import InspectVllm
from tasks.preflight import AcceleratorFree
from tasks.recommend import MapRisks, Recommend


def look() -> tuple[TaskSpec, ...]:
    """Inspection: nothing is changed."""
    return (
        TaskSpec(
            "accelerator-free", "Confirm that no foreign job holds the accelerator (training stopped)", "inspect",
            AcceleratorFree(),  # without a short limit: it may have to make an embedded host first
        ),
        TaskSpec(
            "inspect-sglang", "Inspect SGLang DFlash and speculative internals for DDTree support", "inspect",
            InspectSglang(), ("accelerator-free",), timeout_s=300,
        ),
        TaskSpec(
            "inspect-vllm", "Research vLLM speculative-decoding extension points", "inspect",
            InspectVllm(), ("accelerator-free",), Priority.MEDIUM, timeout_s=300,
        ),
        TaskSpec(
            "inspect-model", "Check target and draft model compatibility", "inspect",
            InspectModel(), ("inspect-sglang",), timeout_s=300,
        ),
        TaskSpec(
            "map-risks", "Map implementation work and risks", "inspect",
            MapRisks(), ("inspect-sglang", "inspect-vllm", "inspect-model"), timeout_s=300,
        ),
        TaskSpec(
            "recommend", "Summarise recommendation and next steps", "inspect", Recommend(), ("map-risks",), timeout_s=300
        ),
    )  # fmt: skip
