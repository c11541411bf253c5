"""What costs acceptance or correctness quietly: numbers, positions, windows, lengths, ranks, states, thinking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.compat_view import Finding, PairView, rope_theta, rule, text_config


@rule
def quantisation(view: PairView) -> Iterator[Finding]:
    """Quantised targets shift the features that the draft was trained on (z-lab/dflash#152)."""
    method = _quantisation(view.target)
    if method:
        yield Finding(
            "target-quantised",
            "hint",
            f"the target is quantised ({method}), the draft was trained on the plain one",
            "compare acceptance with the plain target's baseline",
        )
    if _quantisation(view.draft):
        yield Finding(
            "draft-quantised",
            "warning",
            f"the draft is quantised ({_quantisation(view.draft)})",
            "use the plain draft: it is small, and its marginals are the tree",
        )
    ours, theirs = (
        view.draft.get("dtype", view.draft.get("torch_dtype")),
        view.target_text.get(
            "dtype", view.target_text.get("torch_dtype", view.target.get("dtype", view.target.get("torch_dtype")))
        ),
    )
    if ours and theirs and ours != theirs and "float16" in (ours, theirs):
        yield Finding(
            "dtype",
            "warning",
            f"the draft is {ours}, the target {theirs}: float16 overflows on bfloat16 features",
            "serve both in bfloat16",
        )
    cache = str(view.service.get("kv_cache_dtype", "auto"))
    if cache.startswith("fp8"):
        yield Finding(
            "fp8-kv",
            "warning",
            f"the service keeps its KV cache in {cache}, with which DFLASH drafts collapsed in the field",
            "serve with --kv-cache-dtype auto, or measure acceptance first",
        )


@rule
def rope(view: PairView) -> Iterator[Finding]:
    """A base that is read from the other place is 10000 by default and ruins acceptance (Rapid-MLX#1007)."""
    bases: dict[str, Any] = {}
    for name, config in (("draft", view.draft), ("target", view.target)):
        top, nested = rope_theta(config)
        bases[name] = nested if nested is not None else top
        if top is not None and nested is not None and top != nested:
            yield Finding(
                "rope-conflict",
                "error",
                f"the {name}'s rope_theta is {top} at the top level and {nested} in rope_parameters",
                "make both the trained value",
            )
        elif name == "draft" and top is None and nested is not None:
            yield Finding(
                "rope-nested-only",
                "hint",
                "the draft's rope_theta stands in rope_parameters only, where older engines do not look",
                "check that the engine does not fall back to 10000",
            )
        elif name == "draft" and top is None and nested is None:
            yield Finding(
                "rope-missing",
                "error",
                "the draft names no rope_theta, so engines use 10000",
                "set the base that it was trained with",
            )
    if None not in bases.values() and bases["draft"] != bases["target"]:
        yield Finding(
            "rope-differs",
            "warning",
            f"rope_theta is {bases['draft']} in the draft and {bases['target']} in the target",
            "compare with the draft's published config.json",
        )
    if _scaling(view.draft) != _scaling(view.target):
        yield Finding(
            "rope-scaling",
            "warning",
            f"RoPE is scaled as {_scaling(view.draft)} in the draft and {_scaling(view.target)} in the target",
            "give both the same scaling, or keep requests within the unscaled length",
        )
    target_rope = view.target_text.get("rope_parameters") or view.target_text.get("rope_scaling") or {}
    if "mrope_section" in target_rope:
        yield Finding(
            "mrope",
            "hint",
            "the target uses multimodal RoPE, the draft the plain one; they agree on text only",
            "leave requests with images out of the measurement",
        )


@rule
def sliding_window(view: PairView) -> Iterator[Finding]:
    """Windows are dropped silently by engines that read one of the three keys only (z-lab/dflash#126)."""
    kinds, layers = view.draft_text.get("layer_types"), view.draft_layers
    window, used = view.draft_text.get("sliding_window"), view.draft_text.get("use_sliding_window")
    if kinds is not None and layers is not None and len(kinds) != layers:
        yield Finding(
            "layer-types-length",
            "error",
            f"layer_types has {len(kinds)} entries for {layers} draft layers",
            "use the draft's published config.json",
        )
    unknown = set(kinds or []) - {"full_attention", "sliding_attention"}
    if unknown:
        yield Finding(
            "layer-types-unknown",
            "error",
            f"layer_types names {sorted(unknown)}, which DFLASH does not know",
            "use full_attention or sliding_attention",
        )
    sliding = "sliding_attention" in (kinds or [])
    if sliding and not window:
        yield Finding(
            "window-missing",
            "error",
            "layer_types has sliding_attention, but sliding_window is not set",
            "set the trained window",
        )
    if sliding and used is False:
        yield Finding(
            "window-switched-off",
            "warning",
            "layer_types has sliding_attention, but use_sliding_window is false",
            "set use_sliding_window to true: engines differ in which one they follow",
        )
    if window and used and not sliding:
        yield Finding(
            "window-dropped",
            "warning",
            f"a sliding window of {window} is asked for, but layer_types names no sliding layer",
            "use the draft's published layer_types, else long contexts accept little",
        )


@rule
def context(view: PairView) -> Iterator[Finding]:
    """A shorter draft reads outside its position table (sglang#9388) or accepts little far out (z-lab/dflash#66)."""
    ours, theirs = view.draft_text.get("max_position_embeddings"), view.target_text.get("max_position_embeddings")
    served = view.service.get("context_length") or theirs
    if ours is not None and served is not None and int(served) > ours:
        yield Finding(
            "context-shorter",
            "warning",
            f"the draft knows {ours} positions, the service offers {served}",
            f"serve with --context-length {ours} or measure acceptance at long contexts",
        )


@rule
def tensor_parallel(view: PairView) -> Iterator[Finding]:
    """SGLang splits heads of draft and target evenly over the ranks."""
    ranks = int(view.service.get("tp_size", view.service.get("tp", 1)) or 1)
    for name, config in (("draft", view.draft), ("target", view.target)):
        text = text_config(config)
        for key in ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads"):
            heads = text.get(key)
            fits = heads is None or heads % ranks == 0 or (key == "num_key_value_heads" and ranks % heads == 0)
            if not fits:
                yield Finding(
                    "tp-heads",
                    "error",
                    f"{key} of the {name} is {heads}, which {ranks} ranks do not divide",
                    "choose a tensor-parallel size that divides it",
                )


@rule
def recurrent_state(view: PairView) -> Iterator[Finding]:
    """States below float32 drift apart from plain decoding after a few tokens (vllm#49887)."""
    dtype = view.service.get("mamba_ssm_dtype") or view.target_text.get("mamba_ssm_dtype", "float32")
    if view.hybrid and dtype != "float32":
        yield Finding(
            "state-dtype",
            "warning",
            f"the recurrent state is kept in {dtype}",
            "serve with --mamba-ssm-dtype float32, else texts differ from plain decoding",
        )


@rule
def thinking(view: PairView) -> Iterator[Finding]:
    """Drafts trained without thinking accept 6 to 15 % with it, and the reverse."""
    if "enable_thinking" in (view.chat_template or ""):
        yield Finding(
            "thinking-mode",
            "hint",
            "the chat template can switch thinking on and off, and drafts are trained for one of both",
            "measure acceptance in the mode that your users send",
        )


def _quantisation(config: dict[str, Any]) -> str | None:
    settings = config.get("quantization_config") or text_config(config).get("quantization_config")
    return str(settings.get("quant_method", "unnamed")) if settings else None


def _scaling(config: dict[str, Any]) -> str:
    text = text_config(config)
    inner = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = inner.get("rope_type", inner.get("type")) if isinstance(inner, dict) else None
    return f"{kind} x{inner.get('factor')}" if kind not in (None, "default", "mrope") else "default"
