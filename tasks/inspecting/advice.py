"""The recommendation drawn from an inspection: which engine, which budget to start from, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inspecting.measured import gain_at
from tasks.inspecting.risks import part

Document = Mapping[str, Any]
# What linear DFlash → tree gained in accepted length elsewhere; measured acceptance replaces it when a baseline exists.
EXPECTED_GAIN = 0.20
FIRST_BUDGETS = (15, 31, 63)


def recommend(document: Document, risks: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """{decision, engine, nodes, reasons[], next_steps[], comparison[]}.

    decision is `deploy` (try it, the benchmark decides), `fix-first` (a blocker that can be mended), `keep-linear`
    (the maths leaves no budget that pays) or `judge-only` (a folder, no host).
    """
    blockers = [r for r in risks if r["severity"] == "blocker"]
    nodes = starting_budget(document)
    comparison = engine_comparison(document)
    return {
        "decision": _decision(document, blockers, nodes),
        "engine": "sglang" if part(document, "sglang", "plugin_possible") else "none",
        "nodes": nodes,
        "reasons": _reasons(document, blockers, nodes),
        "next_steps": _next_steps(document, blockers, nodes),
        "comparison": comparison,
    }


def starting_budget(document: Document) -> int | None:
    """The widest budget that fits in memory and whose break-even gain is not above what trees have gained elsewhere."""
    gains = part(document, "model", "measured_gain") or {}
    predictions = {p["nodes"]: p for p in part(document, "predictions") or []}
    fitting = [row["nodes"] for row in part(document, "budgets") or [] if row["fits"]]
    if not predictions:  # no data sheet for this device: start small
        small = [n for n in fitting if n in FIRST_BUDGETS]
        return min(small) if small else None
    expected = {n: gain_at(gains, n) for n in fitting}
    useful = [
        n
        for n, measured in expected.items()
        if n in predictions and predictions[n]["break_even_gain"] <= (EXPECTED_GAIN if measured is None else measured)
    ]
    return max((n for n in useful if n <= 256), default=None)


def _decision(document: Document, blockers: Sequence[Mapping[str, str]], nodes: int | None) -> str:
    if part(document, "kind") == "folder":
        return "judge-only"
    if blockers:
        return "fix-first"
    return "deploy" if nodes is not None else "keep-linear"


def _reasons(document: Document, blockers: Sequence[Mapping[str, str]], nodes: int | None) -> list[str]:
    reasons = [f"{r['id']}: {r['evidence']}" for r in blockers]
    version = part(document, "sglang", "version")
    if part(document, "sglang", "plugin_possible"):
        reasons.append(f"sglang {version} loads plug-ins and registers algorithms: no file of it has to be edited")
    elif version:
        reasons.append(f"sglang {version} can't take an out-of-tree DFlash algorithm")
    if nodes is not None:
        row = next(r for r in part(document, "budgets") if r["nodes"] == nodes)
        prediction = next((p for p in part(document, "predictions") or [] if p["nodes"] == nodes), None)
        text = f"{nodes} nodes (T = {row['width']}) fit: {row['reason']}"
        if prediction:
            text += f"; predicted step {prediction['step_s'] * 1e3:.1f} ms, break-even at {prediction['break_even_gain']:.1%} more tokens a step"
        measured = gain_at(part(document, "model", "measured_gain") or {}, nodes)
        if measured is not None:
            text += f"; the oracle found {measured:+.0%} tokens a step ({part(document, 'model', 'measured_on')})"
        reasons.append(text)
    return reasons


def _next_steps(document: Document, blockers: Sequence[Mapping[str, str]], nodes: int | None) -> list[str]:
    if part(document, "kind") == "folder":
        return ["run inspect on a host to judge hardware, models and budgets"]
    if blockers:
        return [f"{r['what_to_do']} ({r['id']})" for r in blockers]
    if nodes is None:
        return ["keep linear; run `orchestrate bench --oracle` to see whether a smaller tree would pay"]
    return [
        "record the linear service as known-good",
        f"deploy a canary with {nodes} nodes and benchmark {', '.join(str(n) for n in FIRST_BUDGETS)} against linear on the same backend",
        "adopt only on a confidence interval above 1; keeping linear is a valid end",
    ]


def engine_comparison(document: Document) -> list[dict[str, str]]:
    """One row per question: what SGLang and vLLM answer on this host."""
    sglang, vllm = part(document, "sglang") or {}, part(document, "vllm") or {}

    def yes(value: object) -> str:
        return "yes" if value else "no"

    def ask(engine: Mapping[str, Any], answer: object) -> str:
        return str(answer) if engine.get("version") else "not installed"

    rows = [
        ("version", ask(sglang, sglang.get("version")), ask(vllm, vllm.get("version"))),
        ("DFlash", ask(sglang, sglang.get("dflash")), ask(vllm, vllm.get("dflash"))),
        ("DDTree", ask(sglang, sglang.get("ddtree")), ask(vllm, vllm.get("ddtree"))),
        (
            "tree attention",
            ask(sglang, ", ".join(sglang.get("tree_backends") or []) or "none here"),
            ask(vllm, "yes" if vllm.get("tree_attention") else "removed or never there"),
        ),
        (
            "hybrid states of branches",
            ask(sglang, yes(sglang.get("hybrid_tree_verify"))),
            ask(vllm, yes(vllm.get("hybrid_tree_state"))),
        ),
        (
            "own algorithm without a patch",
            ask(sglang, yes(sglang.get("plugin_possible"))),
            ask(vllm, "drafts only" if vllm.get("custom_proposer") else "no"),
        ),
        (
            "DDTree port",
            ask(sglang, "plug-in (this project)" if sglang.get("plugin_possible") else "no"),
            ask(vllm, vllm.get("port")),
        ),
    ]
    return [{"question": q, "sglang": a, "vllm": b} for q, a, b in rows]
