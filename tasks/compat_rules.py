"""The known mismatches between a DFlash draft and its target, one rule each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tasks.compat_view import DEFAULT_BLOCK, Finding, PairView, rope_theta, text_config

Rule = Callable[[PairView], Iterator[Finding]]
DFLASH_CLASSES = {"DFlashDraftModel"}
OTHER_DFLASH_CLASSES = {"DFlash2DraftModel", "DFlash2BeamDraftModel", "DFlashLagunaForCausalLM"}
FLOAT_DTYPES = {"F32", "F16", "BF16", "F64"}
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


@rule
def kinds_of_model(view: PairView) -> Iterator[Finding]:
    """Swapped folders, drafts of another method, DFlash relatives with selectors that a tree would ignore."""
    if "dflash_config" in view.target:
        yield Finding("swapped", "error", "the target's configuration has a dflash_config, so it is a draft itself",
                      "swap the two folders")
    classes = set(view.draft.get("architectures") or [])
    if classes & OTHER_DFLASH_CLASSES or view.dflash.get("selector_rank") or view.dflash.get("projector_type"):
        name = ", ".join(sorted(classes)) or view.dflash.get("projector_type")
        yield Finding("draft-has-selector", "error", f"the draft ({name}) corrects its own proposals with a selector or projector, "
                      "which independent marginals of a tree leave out", "keep it linear or use the plain DFlash draft of this target")
    elif not classes & DFLASH_CLASSES:
        yield Finding("not-dflash", "error", f"the draft's architecture is {sorted(classes) or 'not named'}, not DFlashDraftModel",
                      "name the folder of a DFlash draft")


@rule
def block(view: PairView) -> Iterator[Finding]:
    """Readers that look in one place only fall back to 16 silently (Rapid-MLX#2195)."""
    top, nested = view.draft.get("block_size"), view.dflash.get("block_size")
    size = view.block_size
    if size is None:
        yield Finding("block-size-missing", "warning", f"the draft names no block_size, so engines assume {DEFAULT_BLOCK}",
                      "set block_size to what the draft was trained with")
    elif size < 2:
        yield Finding("block-size-impossible", "error", f"block_size is {size}", "use the draft's published config.json")
    if top is not None and nested is not None and top != nested:
        yield Finding("block-size-conflict", "error", f"block_size is {top} at the top level and {nested} in dflash_config",
                      "make both the trained value")
    elif top is not None and nested is None and view.dflash:
        yield Finding("block-size-top-level-only", "hint", "block_size stands at the top level only, where some engines do not look",
                      "check the engine's log for the block it uses")
    elif nested is not None and top is None:
        yield Finding("block-size-nested-only", "hint", "block_size stands in dflash_config only, where some engines do not look",
                      "check the engine's log for the block it uses")
    asked = view.service.get("speculative_dflash_block_size")
    if asked is not None and size is not None and int(asked) != size:
        yield Finding("block-size-service", "error", f"the service asks for block {asked}, the draft was trained with {size}",
                      "drop --speculative-dflash-block-size")


@rule
def mask_token(view: PairView) -> Iterator[Finding]:
    """Mask ids differ between authors of drafts for one target; a string may be all that the draft gives."""
    mask, vocab = view.mask_token_id, view.target_text.get("vocab_size")
    name = view.draft_value("mask_token")
    added = {t.get("content"): t.get("id") for t in (view.target_tokenizer or {}).get("added_tokens", [])}
    if mask is None:
        known = name is not None and (not added or name in added)
        yield Finding("mask-token-missing", "warning" if known else "error",
                      f"the draft gives no mask_token_id{f', only the string {name!r}' if name else ''}",
                      "set mask_token_id to the id that the draft was trained with")
    elif vocab is not None and not 0 <= mask < vocab:
        yield Finding("mask-token-outside", "error", f"mask_token_id {mask} is outside the target's vocabulary of {vocab}",
                      "use the draft for this target; embeddings are not resized")
    if mask is not None and name is not None and added.get(name, mask) != mask:
        yield Finding("mask-token-conflict", "error", f"mask_token {name!r} has id {added[name]} in the target's tokenizer, not {mask}",
                      "use the id that the draft was trained with")
    if mask is not None and mask in _ids(view.target_text.get("eos_token_id"), view.target.get("eos_token_id")):
        yield Finding("mask-token-is-end", "warning", f"mask_token_id {mask} is the target's end token",
                      "compare it with the draft's published config.json")


@rule
def tapped_layers(view: PairView) -> Iterator[Finding]:
    """The last layer cannot be tapped in SGLang; a draft for another depth reads noise."""
    taps, layers = view.taps, view.target_layers
    if not taps:
        yield Finding("taps-missing", "error", "the draft names no target_layer_ids", "use the draft's published config.json")
        return
    if sorted(set(taps)) != taps:
        yield Finding("taps-order", "error", f"target_layer_ids {taps} are not strictly increasing",
                      "use the draft's published config.json")
    if layers is not None and not all(0 <= tap < layers - 1 for tap in taps):
        yield Finding("taps-outside", "error", f"target_layer_ids {taps} do not lie in 0..{layers - 2} of the target's {layers} layers",
                      "use the draft that was trained for this target")
    claimed = view.draft_value("num_target_layers")
    if claimed is not None and layers is not None and claimed != layers:
        yield Finding("target-depth", "error", f"the draft was trained for a target of {claimed} layers, this one has {layers}",
                      "use the draft that was trained for this target")


@rule
def hidden_sizes(view: PairView) -> Iterator[Finding]:
    """Embedding and head are the target's, so widths must be equal."""
    ours, theirs = view.draft_text.get("hidden_size"), view.target_text.get("hidden_size")
    if ours is not None and theirs is not None and ours != theirs:
        yield Finding("hidden-size", "error", f"the draft's hidden size is {ours}, the target's {theirs}",
                      "use the draft that was trained for this target")
    shape = _tensor(view.draft_tensors, "fc.weight")
    taps = view.taps
    if shape and theirs and taps and shape[1] != len(taps) * theirs:
        yield Finding("fc-shape", "error", f"fc.weight takes {shape[1]} features, {len(taps)} taps of {theirs} give {len(taps) * theirs}",
                      "the weights and the config.json are of different drafts: download both again")


@rule
def draft_weights(view: PairView) -> Iterator[Finding]:
    """Configuration and weights of different revisions load silently in some engines."""
    tensors, layers = view.draft_tensors, view.draft_layers
    if not tensors or layers is None:
        return
    present = {int(part.split(".")[0]) for name in tensors if "layers." in name for part in [name.split("layers.", 1)[1]]}
    if present != set(range(layers)):
        yield Finding("draft-layers", "error", f"the draft's weights hold layers {sorted(present)}, its configuration says {layers}",
                      "download weights and config.json of one revision")
    for name in ("fc.weight", "hidden_norm.weight", "norm.weight"):
        if _tensor(tensors, name) is None:
            yield Finding("draft-tensor-missing", "error", f"the draft's weights lack {name}", "download the weights again")
    if _tensor(tensors, "lm_head.weight") or _tensor(tensors, "embed_tokens.weight"):
        yield Finding("draft-own-head", "hint", "the draft's weights bring an embedding or head that DFLASH does not use",
                      "nothing to do unless acceptance is low")


@rule
def head(view: PairView) -> Iterator[Finding]:
    """The draft's logits go through the target's head."""
    tied = view.facts()["tied_head"]
    stored = next((v for k, v in (view.target_tensors or {}).items() if k.endswith("lm_head.weight")), None)
    if view.target_tensors and not tied and stored is None and not any("lm_head" in k for k in view.target_tensors):
        yield Finding("head-missing", "error", "the target's weights hold no lm_head and its configuration does not tie it",
                      "set tie_word_embeddings as published or download the missing file")
    packed = any("lm_head" in k and k.endswith((".qweight", ".weight_packed")) for k in view.target_tensors or {})
    if packed or (stored is not None and stored[0] not in FLOAT_DTYPES):
        yield Finding("head-quantised", "warning", "the target's lm_head is quantised, so the draft's candidates carry its error "
                      "and the draft runs without its graph", "measure acceptance, or use a checkpoint with a plain lm_head")


@rule
def quantisation(view: PairView) -> Iterator[Finding]:
    """Quantised targets shift the features that the draft was trained on (z-lab/dflash#152)."""
    method = _quantisation(view.target)
    if method:
        yield Finding("target-quantised", "hint", f"the target is quantised ({method}), the draft was trained on the plain one",
                      "compare acceptance with the plain target's baseline")
    if _quantisation(view.draft):
        yield Finding("draft-quantised", "warning", f"the draft is quantised ({_quantisation(view.draft)})",
                      "use the plain draft: it is small, and its marginals are the tree")
    ours, theirs = view.draft.get("dtype", view.draft.get("torch_dtype")), view.target_text.get(
        "dtype", view.target_text.get("torch_dtype", view.target.get("dtype", view.target.get("torch_dtype"))))
    if ours and theirs and ours != theirs and "float16" in (ours, theirs):
        yield Finding("dtype", "warning", f"the draft is {ours}, the target {theirs}: float16 overflows on bfloat16 features",
                      "serve both in bfloat16")
    cache = str(view.service.get("kv_cache_dtype", "auto"))
    if cache.startswith("fp8"):
        yield Finding("fp8-kv", "warning", f"the service keeps its KV cache in {cache}, with which DFLASH drafts collapsed in the field",
                      "serve with --kv-cache-dtype auto, or measure acceptance first")


@rule
def rope(view: PairView) -> Iterator[Finding]:
    """A base that is read from the other place is 10000 by default and ruins acceptance (Rapid-MLX#1007)."""
    bases: dict[str, Any] = {}
    for name, config in (("draft", view.draft), ("target", view.target)):
        top, nested = rope_theta(config)
        bases[name] = nested if nested is not None else top
        if top is not None and nested is not None and top != nested:
            yield Finding("rope-conflict", "error", f"the {name}'s rope_theta is {top} at the top level and {nested} in rope_parameters",
                          "make both the trained value")
        elif name == "draft" and top is None and nested is not None:
            yield Finding("rope-nested-only", "hint", "the draft's rope_theta stands in rope_parameters only, where older engines do not look",
                          "check that the engine does not fall back to 10000")
        elif name == "draft" and top is None and nested is None:
            yield Finding("rope-missing", "error", "the draft names no rope_theta, so engines use 10000",
                          "set the base that it was trained with")
    if None not in bases.values() and bases["draft"] != bases["target"]:
        yield Finding("rope-differs", "warning", f"rope_theta is {bases['draft']} in the draft and {bases['target']} in the target",
                      "compare with the draft's published config.json")
    if _scaling(view.draft) != _scaling(view.target):
        yield Finding("rope-scaling", "warning", f"RoPE is scaled as {_scaling(view.draft)} in the draft and {_scaling(view.target)} in the target",
                      "give both the same scaling, or keep requests within the unscaled length")
    target_rope = view.target_text.get("rope_parameters") or view.target_text.get("rope_scaling") or {}
    if "mrope_section" in target_rope:
        yield Finding("mrope", "hint", "the target uses multimodal RoPE, the draft the plain one; they agree on text only",
                      "leave requests with images out of the measurement")


@rule
def sliding_window(view: PairView) -> Iterator[Finding]:
    """Windows are dropped silently by engines that read one of the three keys only (z-lab/dflash#126)."""
    kinds, layers = view.draft_text.get("layer_types"), view.draft_layers
    window, used = view.draft_text.get("sliding_window"), view.draft_text.get("use_sliding_window")
    if kinds is not None and layers is not None and len(kinds) != layers:
        yield Finding("layer-types-length", "error", f"layer_types has {len(kinds)} entries for {layers} draft layers",
                      "use the draft's published config.json")
    unknown = set(kinds or []) - {"full_attention", "sliding_attention"}
    if unknown:
        yield Finding("layer-types-unknown", "error", f"layer_types names {sorted(unknown)}, which DFLASH does not know",
                      "use full_attention or sliding_attention")
    sliding = "sliding_attention" in (kinds or [])
    if sliding and not window:
        yield Finding("window-missing", "error", "layer_types has sliding_attention, but sliding_window is not set",
                      "set the trained window")
    if sliding and used is False:
        yield Finding("window-switched-off", "warning", "layer_types has sliding_attention, but use_sliding_window is false",
                      "set use_sliding_window to true: engines differ in which one they follow")
    if window and used and not sliding:
        yield Finding("window-dropped", "warning", f"a sliding window of {window} is asked for, but layer_types names no sliding layer",
                      "use the draft's published layer_types, else long contexts accept little")


@rule
def vocabulary(view: PairView) -> Iterator[Finding]:
    """Candidates are target token ids."""
    ours, theirs = view.draft_text.get("vocab_size"), view.target_text.get("vocab_size")
    if ours is not None and theirs is not None and ours != theirs:
        yield Finding("vocab-size", "error", f"the draft's vocabulary has {ours} entries, the target's {theirs}",
                      "use the draft that was trained for this target")
    if view.draft_tokenizer and view.target_tokenizer:
        mine, other = (t.get("model", {}).get("vocab") for t in (view.draft_tokenizer, view.target_tokenizer))
        if mine != other or _added(view.draft_tokenizer) != _added(view.target_tokenizer):
            yield Finding("tokenizer-differs", "error", "the draft's folder holds another tokenizer than the target's",
                          "use the draft that was trained for this target")


@rule
def context(view: PairView) -> Iterator[Finding]:
    """A shorter draft reads outside its position table (sglang#9388) or accepts little far out (z-lab/dflash#66)."""
    ours, theirs = view.draft_text.get("max_position_embeddings"), view.target_text.get("max_position_embeddings")
    served = view.service.get("context_length") or theirs
    if ours is not None and served is not None and int(served) > ours:
        yield Finding("context-shorter", "warning", f"the draft knows {ours} positions, the service offers {served}",
                      f"serve with --context-length {ours} or measure acceptance at long contexts")


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
                yield Finding("tp-heads", "error", f"{key} of the {name} is {heads}, which {ranks} ranks do not divide",
                              "choose a tensor-parallel size that divides it")


@rule
def recurrent_state(view: PairView) -> Iterator[Finding]:
    """States below float32 drift apart from plain decoding after a few tokens (vllm#49887)."""
    dtype = view.service.get("mamba_ssm_dtype") or view.target_text.get("mamba_ssm_dtype", "float32")
    if view.hybrid and dtype != "float32":
        yield Finding("state-dtype", "warning", f"the recurrent state is kept in {dtype}",
                      "serve with --mamba-ssm-dtype float32, else texts differ from plain decoding")


@rule
def thinking(view: PairView) -> Iterator[Finding]:
    """Drafts trained without thinking accept 6 to 15 % with it, and the reverse."""
    if "enable_thinking" in (view.chat_template or ""):
        yield Finding("thinking-mode", "hint", "the chat template can switch thinking on and off, and drafts are trained for one of both",
                      "measure acceptance in the mode that your users send")


def _ids(*values: Any) -> set[int]:
    return {i for value in values if value is not None for i in (value if isinstance(value, list) else [value])}


def _tensor(table: dict[str, tuple[str, tuple[int, ...]]] | None, name: str) -> tuple[int, ...] | None:
    for key in (name, "model." + name):
        if table and key in table:
            return table[key][1]
    return None


def _quantisation(config: dict[str, Any]) -> str | None:
    settings = config.get("quantization_config") or text_config(config).get("quantization_config")
    return str(settings.get("quant_method", "unnamed")) if settings else None


def _scaling(config: dict[str, Any]) -> str:
    text = text_config(config)
    inner = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = inner.get("rope_type", inner.get("type")) if isinstance(inner, dict) else None
    return f"{kind} x{inner.get('factor')}" if kind not in (None, "default", "mrope") else "default"


def _added(tokenizer: Any) -> dict[str, int]:
    return {t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}
