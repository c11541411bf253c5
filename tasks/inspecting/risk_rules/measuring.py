"""Rules about what makes a measurement void or a tree slow."""

from __future__ import annotations

from tasks.inspecting.risks import Document, hybrid, part, rule

SHORT_OUTPUT_TOKENS = 256


@rule(
    "batch",
    "medium",
    consequence="wide trees lose at high concurrency: a step becomes bound by arithmetic",
    what_to_do="benchmark at your concurrency; adaptive mode returns to linear above the break-even batch",
)
def batch(d: Document) -> str | None:
    requests = part(d, "setting", "running_requests") or 1
    return f"up to {requests} requests run together" if requests >= 8 else None


@rule(
    "short-outputs",
    "low",
    consequence=f"answers under {SHORT_OUTPUT_TOKENS} tokens hide the cost of a step and have shown gains that vanish",
    what_to_do="the benchmark refuses such rows; give prompts with long answers",
)
def short_outputs(d: Document) -> str | None:
    return "holds for every benchmark of speculative decoding" if part(d, "kind") != "folder" else None


@rule(
    "near-ties",
    "low",
    consequence="greedy text may differ from non-speculative decoding where two tokens are nearly equal",
    what_to_do="compare with linear DFlash on the same backend; differences are classed by their logit gap",
)
def near_ties(d: Document) -> str | None:
    return "holds for every verify width other than 1" if part(d, "kind") != "folder" else None


@rule(
    "hybrid-tree-gain",
    "medium",
    consequence="public ports on hybrid models were 22 to 32 % slower than the chain",
    what_to_do="let the paired benchmark decide; keeping linear is a valid end",
)
def hybrid_gain(d: Document) -> str | None:
    return "the target has recurrent layers" if hybrid(d) else None
