"""Proof that the tree serves the same text as the linear service, and accepts what it must, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.bench.prompts import native_prompt
from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.openai.client import Client
from tasks import baseline_files
from tasks.baseline_parity import Judge, TraceFile, find_judge, hold_linear, hold_tree, sentence
from tasks.knobs import knobs_of
from tasks.linear import linear_engine
from tasks.patch import BUILD, tree_engine
from tasks.samples import (
    SAMPLE_PROMPTS,
    Difference,
    Sample,
    compare,
    default_prompts,
    sample_from_json,
    take_samples,
    tokens_per_step,
)
from tasks.serving import side_engine


class CompareWithLinear(Action):
    """Same prompts, greedy, on a side engine of the release: token ids must be equal, acceptance not lower.

    Texts may part where the linear engine itself is undecided: in bfloat16 a verify of another width orders such tokens
    by chance. Where an offline baseline of the served pair exists, every step must accept what the baseline says.
    """

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        known = baseline_files.fingerprint(ctx.host.state_dir)
        return {
            "nodes": knobs.nodes, "max_tokens": knobs.max_tokens, "engine": knobs.engine,
            "baselines": known, "parity_bound": knobs.parity_bound,
        }  # fmt: skip

    def probe(self, ctx: TaskContext) -> Probe:
        if ctx.earlier is not None:
            return Probe(True, "the same release gave the same tokens as the same linear service")
        return Probe(False, "this release has not been compared with the linear service")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        expected = [sample_from_json(one) for one in ctx.output("record-linear")["samples"][:SAMPLE_PROMPTS]]
        judge = find_judge(ctx)
        engine, trace = tree_engine(ctx, "proof", knobs.nodes), None
        if isinstance(judge, Judge):
            trace = TraceFile(ctx.host, engine.name, engine.launch.user)
            trace.prepare()
            engine = tree_engine(ctx, "proof", knobs.nodes, trace.env)
        with side_engine(ctx, engine) as url:
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), knobs.max_tokens)
            # The baseline judges first: what it says of a broken engine names the node, not only the token.
            tree = hold_tree(ctx, judge, url, trace) if isinstance(judge, Judge) and trace else None
        found = comparison(ctx, expected, got, knobs.nodes)
        if isinstance(judge, str):
            return {**found, "offline": {"missing": judge}}
        linear = hold_linear(ctx, judge)
        return {**found, "offline": {"baseline": judge.baseline.path.stem, "tree": tree, "linear": linear}}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("compare")
        ties = f" ({found['ties']} part where the linear engine is undecided)" if found["ties"] else ""
        said = (
            f"{found['equal']} of {found['prompts']} greedy outputs equal token by token{ties}; "
            f"{found['tree']:.2f} against {found['linear']:.2f} tokens per step at B={found['nodes']}; "
            f"{sentence(found['offline'])}"
        )
        return Evidence(f"release {ctx.output(BUILD).get('release')} against the linear service", said, found)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"equal": output.get("equal"), "nodes": output.get("nodes")}


def comparison(ctx: TaskContext, expected: list[Sample], got: list[Sample], nodes: int) -> dict[str, Json]:
    """Figures of the comparison; OrchestrateError names prompt and token of a difference, or the fall in acceptance."""
    differences = compare(expected, got)
    real = _decided(ctx, expected, differences) if differences else []
    if real:
        raise OrchestrateError(
            f"DDTREE does not give the linear service's tokens ({len(real)} of {len(expected)} prompts): "
            f"{real[0]}; the release is not deployed."
        )
    linear, tree = tokens_per_step(expected), tokens_per_step(got)
    if not sum(sample.steps for sample in got):
        raise OrchestrateError("The patched engine made no verify step: it does not speculate; see its log.")
    if tree < linear:
        raise OrchestrateError(
            f"DDTREE accepts less than the chain ({tree:.3f} against {linear:.3f} tokens per step at B={nodes}); "
            "that is a fault of the engine, so it is not deployed."
        )
    ties = len(differences)
    return {
        "prompts": len(expected), "equal": len(expected) - ties, "ties": ties, "linear": linear, "tree": tree, "nodes": nodes,
    }  # fmt: skip


def _decided(ctx: TaskContext, expected: Sequence[Sample], differences: Sequence[Difference]) -> list[Difference]:
    """The differences at which the linear engine prefers its own token by more than the bound, or one text just ends."""
    prompts = {prompt.id: prompt for prompt in default_prompts(SAMPLE_PROMPTS)}
    texts = {sample.prompt_id: sample.ids for sample in expected}
    bound, real = knobs_of(ctx).parity_bound, []
    with linear_engine(ctx) as engine, Client(engine.url) as client:
        model = (client.models() or ["default"])[0]
        for one in differences:
            gap = None
            if one.expected is not None and one.got is not None:
                native = native_prompt(client, prompts[one.prompt_id], model)
                prefix = texts[one.prompt_id][: one.position]
                gap = client.preference(native, prefix, one.expected, one.got, model)
            ctx.log(
                f"differs: {one}, which the linear engine prefers by {'an unknown gap' if gap is None else f'{gap:.4f} nats'}"
            )
            if gap is None or abs(gap) > bound:
                real.append(one)
    return real
