"""The roadmap, regenerated from the store at the end of a run, with what was planned beside what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.bench.prompts import load_prompts, shipped_sets
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.report.roadmap import regenerate
from tasks.inspecting.measured import gain_at
from tasks.knobs import MEANINGS, Knobs, knobs_of
from tasks.samples import RECORDED_PROMPTS, SAMPLE_PROMPTS

# Greedy decoding of Qwen3-8B at batch 1, best budget of each of ten data sets against linear DFlash.
PAPER = "arXiv 2604.12989: Qwen3-8B, Transformers, batch 1, greedy, best budget of each data set"
PAPER_SPEED = "1.31x to 1.62x"


class RegenerateRoadmap(Action):
    """Writes roadmap/sglang-ddtree-roadmap.md beside the inventory."""

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "the roadmap follows every run")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        ctx.fact("roadmap.plan", ctx.host.name, plan(knobs_of(ctx), ctx))
        written = regenerate(ctx.store, ctx.host.state_dir, run_id=ctx.run_id)
        return {"path": str(written.path), "sha256": written.sha256, "changed": written.changed}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("roadmap")
        again = regenerate(ctx.store, ctx.host.state_dir, run_id=ctx.run_id, check=True)
        said = f"{found['path']} (SHA-256 {found['sha256'][:12]})"
        return Evidence(
            "roadmap regenerated from the store", said, {"sha256": found["sha256"], "path": str(again.path)}
        )


def plan(knobs: Knobs, ctx: TaskContext) -> dict[str, Json]:
    """The fact `roadmap.plan`: {knobs, testing, expectations} of this run, as the roadmap's tables show them."""
    inspected = ctx.output("inspect-model").get("model") or {}
    predictions = ctx.output("inspect-sglang").get("predictions") or []
    return {
        "knobs": knob_rows(knobs),
        "testing": testing_lines(knobs),
        "expectations": [
            *fixed_rows(),
            *gain_rows(knobs.budgets, inspected.get("measured_gain") or {}, str(inspected.get("measured_on"))),
            *prediction_rows(knobs.budgets, predictions),
        ],
    }


def knob_rows(knobs: Knobs) -> list[dict[str, str]]:
    """Every knob with its value in this run; one that is not set says so."""
    rows = [{"name": name, "value": _text(getattr(knobs, name)), "meaning": MEANINGS[name]} for name in MEANINGS]
    engine = {
        "ddtree.topk": ("candidates that the draft offers for each depth", knobs.tree.topk),
        "ddtree.spine_depth": ("depth to which the draft's best chain is always kept", knobs.tree.spine_depth),
        "ddtree.off_spine_penalty": ("log-probability taken from nodes off that chain", knobs.tree.off_spine_penalty),
        "ddtree.adaptive": ("fewer nodes, or linear, while many requests run at once", knobs.tree.adaptive),
    }
    return rows + [
        {"name": name, "value": _text(value), "meaning": f"{meaning} (hosts.yaml)"}
        for name, (meaning, value) in engine.items()
    ]


def testing_lines(knobs: Knobs) -> list[str]:
    """How this run tests, in its own figures, then the prompt sets."""
    lines = [
        "Self-test in the release on this host: every operation against its reference, and every upstream function "
        "that the plugin overrides against the installed SGLang.",
        f"Parity: {SAMPLE_PROMPTS} greedy prompts, token by token, DDTree with B={knobs.nodes} against the linear "
        "service; acceptance may not fall below the chain's.",
        "OpenAI smoke tests of the linear service and of the canary; what only the linear one offers is a loss that "
        "has to be accepted by name.",
        f"Paired sweep: linear and tree in adjacent blocks on one host with the same flags, {knobs.pairs} pairs for "
        f"each budget, {knobs.group_size} prompts a pair, {knobs.max_tokens} tokens a request; loops, short answers "
        "and foreign load make a row invalid.",
        f"Verdict: the 95 % interval of the speed ratio has to lie above {1 + knobs.margin:g} to adopt.",
        f"Cut-over: the recorded tokens again on the live service, confirmed by a fresh login within "
        f"{knobs.confirm_s:g} s, or the host goes back by itself.",
        f"Prompts: the first {RECORDED_PROMPTS} of the sets below, every category in turn.",
    ]
    return lines + [f"Prompt set {path.stem}: {len(load_prompts(path))} prompts." for path in shipped_sets()]


def fixed_rows() -> list[dict[str, Any]]:
    """What is expected on every host."""
    return [
        {
            "what": "greedy outputs equal to the linear service's", "expected": "all",
            "source": "the verify step accepts only what the target says", "figure": "equal",
        },
        {
            "what": "speed against linear, best budget", "expected": PAPER_SPEED, "source": PAPER,
            "figure": "best_speed",
        },
    ]  # fmt: skip


def gain_rows(budgets: tuple[int, ...], gains: Mapping[str, float], source: str) -> list[dict[str, Any]]:
    """Tokens per step that the acceptance oracle found for this pair of models, by budget."""
    found = [(budget, gain_at(gains, budget)) for budget in budgets]
    return [
        {
            "what": f"tokens per step against the chain, B={budget}", "expected": f"{1 + gain:.3f}x",
            "source": source, "nodes": budget, "figure": "tokens",
        }
        for budget, gain in found if gain is not None
    ]  # fmt: skip


def prediction_rows(budgets: tuple[int, ...], predictions: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a step should cost on this GPU, by budget."""
    by_nodes = {int(row["nodes"]): row for row in predictions}
    return [
        {
            "what": f"tokens per step that pay for B={budget}",
            "expected": f"at least {1 + by_nodes[budget]['break_even_gain']:.3f}x",
            "source": f"data sheet: a step takes {by_nodes[budget]['ratio_to_linear']:.2f} times linear's",
            "nodes": budget, "figure": "tokens",
        }
        for budget in budgets if budget in by_nodes
    ]  # fmt: skip


def _text(value: Any) -> str:
    if value is None or value in ("", ()):
        return "not set"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
