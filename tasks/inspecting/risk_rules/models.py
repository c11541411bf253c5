"""Rules about target and draft."""

from __future__ import annotations

from tasks.inspecting.risks import Document, option, part, rule


@rule(
    "draft-mismatch",
    "blocker",
    consequence="the drafter's marginals are noise or the engine refuses to start",
    what_to_do="use the draft that was trained for this target",
)
def draft_mismatch(d: Document) -> str | None:
    problems = part(d, "model", "compat", "problems") or []
    return "; ".join(str(p) for p in problems) or None


@rule(
    "no-draft",
    "blocker",
    consequence="there is nothing to build a tree from",
    what_to_do="name the draft's folder under model in hosts.yaml",
)
def no_draft(d: Document) -> str | None:
    return (
        "no draft model was found"
        if part(d, "model", "target") and not part(d, "model", "draft") and part(d, "kind") != "folder"
        else None
    )


@rule(
    "thinking-draft",
    "medium",
    consequence="drafts trained with thinking off accept 6 to 15 % with thinking on",
    what_to_do="measure acceptance with thinking on and off, and benchmark with what your users send",
)
def thinking(d: Document) -> str | None:
    mode = part(d, "model", "target", "thinking")
    return (
        f"the target's template has thinking {mode}"
        if mode in ("switchable", "always") and part(d, "model", "draft")
        else None
    )


@rule(
    "bf16-state",
    "high",
    consequence="rounding of the recurrent state adds up; a tree then accepts less than the chain it contains",
    what_to_do="run with --mamba-ssm-dtype float32",
)
def bf16_state(d: Document) -> str | None:
    given = option(d, "mamba_ssm_dtype") or part(d, "model", "target", "linear", "state_dtype")
    return f"the recurrent state is kept in {given}" if given in ("bfloat16", "float16") else None


@rule(
    "quantised-target",
    "medium",
    consequence="kernels of quantised weights change with the number of rows, so greedy texts may differ at near ties",
    what_to_do="parity is judged by logit gaps, not by equal strings alone",
)
def quantised(d: Document) -> str | None:
    kind = part(d, "model", "target", "quantisation")
    return f"the target is quantised ({kind})" if kind not in (None, "none") else None


@rule(
    "long-context-draft",
    "low",
    consequence="drafts trained at short context lose acceptance on long prompts",
    what_to_do="benchmark at the prompt lengths that you serve",
)
def long_context(d: Document) -> str | None:
    window = part(d, "model", "draft", "sliding_window")
    return f"the draft attends to a window of {window} tokens" if window else None
