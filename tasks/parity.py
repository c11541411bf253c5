"""Proof that the tree serves the same text as the linear service, and accepts at least as much."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from tasks.knobs import knobs_of
from tasks.patch import BUILD, tree_engine
from tasks.samples import (
    SAMPLE_PROMPTS,
    Sample,
    compare,
    default_prompts,
    sample_from_json,
    take_samples,
    tokens_per_step,
)
from tasks.serving import side_engine


class CompareWithLinear(Action):
    """Same prompts, greedy, on a side engine of the release: token ids must be equal, acceptance not lower."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        return {"nodes": knobs.nodes, "max_tokens": knobs.max_tokens, "engine": knobs.engine}

    def probe(self, ctx: TaskContext) -> Probe:
        if ctx.earlier is not None:
            return Probe(True, "the same release gave the same tokens as the same linear service")
        return Probe(False, "this release has not been compared with the linear service")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        expected = [sample_from_json(one) for one in ctx.output("record-linear")["samples"][:SAMPLE_PROMPTS]]
        engine = tree_engine(ctx, "proof", knobs.nodes)
        with side_engine(ctx, engine) as url:
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), knobs.max_tokens)
        return comparison(ctx, expected, got, knobs.nodes)

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("compare")
        said = (
            f"{found['equal']} of {found['prompts']} greedy outputs equal token by token; "
            f"{found['tree']:.2f} against {found['linear']:.2f} tokens per step at B={found['nodes']}"
        )
        return Evidence(f"release {ctx.output(BUILD).get('release')} against the linear service", said, found)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"equal": output.get("equal"), "nodes": output.get("nodes")}


def comparison(ctx: TaskContext, expected: list[Sample], got: list[Sample], nodes: int) -> dict[str, Json]:
    """Figures of the comparison; OrchestrateError names prompt and token of a difference, or the fall in acceptance."""
    differences = compare(expected, got)
    for difference in differences:
        ctx.log(f"differs: {difference}")
    if differences:
        raise OrchestrateError(
            f"DDTREE does not give the linear service's tokens ({len(differences)} of {len(expected)} prompts): "
            f"{differences[0]}; the release is not deployed."
        )
    linear, tree = tokens_per_step(expected), tokens_per_step(got)
    if not sum(sample.steps for sample in got):
        raise OrchestrateError("The patched engine made no verify step: it does not speculate; see its log.")
    if tree < linear:
        raise OrchestrateError(
            f"DDTREE accepts less than the chain ({tree:.3f} against {linear:.3f} tokens per step at B={nodes}); "
            "that is a fault of the engine, so it is not deployed."
        )
    return {"prompts": len(expected), "equal": len(expected), "linear": linear, "tree": tree, "nodes": nodes}
