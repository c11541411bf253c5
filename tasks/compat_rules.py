"""What draft and target must share to work at all: kind, block, mask token, taps, widths, weights, head, vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.compat_view import DEFAULT_BLOCK, Finding, PairView, rule

DFLASH_CLASSES = {"DFlashDraftModel"}
OTHER_DFLASH_CLASSES = {"DFlash2DraftModel", "DFlash2BeamDraftModel", "DFlashLagunaForCausalLM"}
FLOAT_DTYPES = {"F32", "F16", "BF16", "F64"}


@rule
def kinds_of_model(view: PairView) -> Iterator[Finding]:
    """Swapped folders, drafts of another method, DFlash relatives with selectors that a tree would ignore."""
    if "dflash_config" in view.target:
        yield Finding(
            "swapped",
            "error",
            "the target's configuration has a dflash_config, so it is a draft itself",
            "swap the two folders",
        )
    classes = set(view.draft.get("architectures") or [])
    if classes & OTHER_DFLASH_CLASSES or view.dflash.get("selector_rank") or view.dflash.get("projector_type"):
        name = ", ".join(sorted(classes)) or view.dflash.get("projector_type")
        yield Finding(
            "draft-has-selector",
            "error",
            f"the draft ({name}) corrects its own proposals with a selector or projector, "
            "which independent marginals of a tree leave out",
            "keep it linear or use the plain DFlash draft of this target",
        )
    elif not classes & DFLASH_CLASSES:
        yield Finding(
            "not-dflash",
            "error",
            f"the draft's architecture is {sorted(classes) or 'not named'}, not DFlashDraftModel",
            "name the folder of a DFlash draft",
        )


@rule
def block(view: PairView) -> Iterator[Finding]:
    """Readers that look in one place only fall back to 16 silently (Rapid-MLX#2195)."""
    top, nested = view.draft.get("block_size"), view.dflash.get("block_size")
    size = view.block_size
    if size is None:
        yield Finding(
            "block-size-missing",
            "warning",
            f"the draft names no block_size, so engines assume {DEFAULT_BLOCK}",
            "set block_size to what the draft was trained with",
        )
    elif size < 2:
        yield Finding(
            "block-size-impossible", "error", f"block_size is {size}", "use the draft's published config.json"
        )
    if top is not None and nested is not None and top != nested:
        yield Finding(
            "block-size-conflict",
            "error",
            f"block_size is {top} at the top level and {nested} in dflash_config",
            "make both the trained value",
        )
    elif top is not None and nested is None and view.dflash:
        yield Finding(
            "block-size-top-level-only",
            "hint",
            "block_size stands at the top level only, where some engines do not look",
            "check the engine's log for the block it uses",
        )
    elif nested is not None and top is None:
        yield Finding(
            "block-size-nested-only",
            "hint",
            "block_size stands in dflash_config only, where some engines do not look",
            "check the engine's log for the block it uses",
        )
    asked = view.service.get("speculative_dflash_block_size")
    if asked is not None and size is not None and int(asked) != size:
        yield Finding(
            "block-size-service",
            "error",
            f"the service asks for block {asked}, the draft was trained with {size}",
            "drop --speculative-dflash-block-size",
        )


@rule
def mask_token(view: PairView) -> Iterator[Finding]:
    """Mask ids differ between authors of drafts for one target; a string may be all that the draft gives."""
    mask, vocab = view.mask_token_id, view.target_text.get("vocab_size")
    name = view.draft_value("mask_token")
    added = {t.get("content"): t.get("id") for t in (view.target_tokenizer or {}).get("added_tokens", [])}
    if mask is None:
        known = name is not None and (not added or name in added)
        yield Finding(
            "mask-token-missing",
            "warning" if known else "error",
            f"the draft gives no mask_token_id{f', only the string {name!r}' if name else ''}",
            "set mask_token_id to the id that the draft was trained with",
        )
    elif vocab is not None and not 0 <= mask < vocab:
        yield Finding(
            "mask-token-outside",
            "error",
            f"mask_token_id {mask} is outside the target's vocabulary of {vocab}",
            "use the draft for this target; embeddings are not resized",
        )
    if mask is not None and name is not None and added.get(name, mask) != mask:
        yield Finding(
            "mask-token-conflict",
            "error",
            f"mask_token {name!r} has id {added[name]} in the target's tokenizer, not {mask}",
            "use the id that the draft was trained with",
        )
    if mask is not None and mask in _ids(view.target_text.get("eos_token_id"), view.target.get("eos_token_id")):
        yield Finding(
            "mask-token-is-end",
            "warning",
            f"mask_token_id {mask} is the target's end token",
            "compare it with the draft's published config.json",
        )


@rule
def tapped_layers(view: PairView) -> Iterator[Finding]:
    """The last layer cannot be tapped in SGLang; a draft for another depth reads noise."""
    taps, layers = view.taps, view.target_layers
    if not taps:
        yield Finding(
            "taps-missing", "error", "the draft names no target_layer_ids", "use the draft's published config.json"
        )
        return
    if sorted(set(taps)) != taps:
        yield Finding(
            "taps-order",
            "error",
            f"target_layer_ids {taps} are not strictly increasing",
            "use the draft's published config.json",
        )
    if layers is not None and not all(0 <= tap < layers - 1 for tap in taps):
        yield Finding(
            "taps-outside",
            "error",
            f"target_layer_ids {taps} do not lie in 0..{layers - 2} of the target's {layers} layers",
            "use the draft that was trained for this target",
        )
    claimed = view.draft_value("num_target_layers")
    if claimed is not None and layers is not None and claimed != layers:
        yield Finding(
            "target-depth",
            "error",
            f"the draft was trained for a target of {claimed} layers, this one has {layers}",
            "use the draft that was trained for this target",
        )


@rule
def hidden_sizes(view: PairView) -> Iterator[Finding]:
    """Embedding and head are the target's, so widths must be equal."""
    ours, theirs = view.draft_text.get("hidden_size"), view.target_text.get("hidden_size")
    if ours is not None and theirs is not None and ours != theirs:
        yield Finding(
            "hidden-size",
            "error",
            f"the draft's hidden size is {ours}, the target's {theirs}",
            "use the draft that was trained for this target",
        )
    shape = _tensor(view.draft_tensors, "fc.weight")
    taps = view.taps
    if shape and len(shape) == 2 and theirs and taps and shape[1] != len(taps) * theirs:
        yield Finding(
            "fc-shape",
            "error",
            f"fc.weight takes {shape[1]} features, {len(taps)} taps of {theirs} give {len(taps) * theirs}",
            "the weights and the config.json are of different drafts: download both again",
        )


@rule
def draft_weights(view: PairView) -> Iterator[Finding]:
    """Configuration and weights of different revisions load silently in some engines."""
    tensors, layers = view.draft_tensors, view.draft_layers
    if not tensors or layers is None:
        return
    present = {
        int(part.split(".")[0]) for name in tensors if "layers." in name for part in [name.split("layers.", 1)[1]]
    }
    if present != set(range(layers)):
        yield Finding(
            "draft-layers",
            "error",
            f"the draft's weights hold layers {sorted(present)}, its configuration says {layers}",
            "download weights and config.json of one revision",
        )
    for name in ("fc.weight", "hidden_norm.weight", "norm.weight"):
        if _tensor(tensors, name) is None:
            yield Finding(
                "draft-tensor-missing", "error", f"the draft's weights lack {name}", "download the weights again"
            )
    if _tensor(tensors, "lm_head.weight") or _tensor(tensors, "embed_tokens.weight"):
        yield Finding(
            "draft-own-head",
            "hint",
            "the draft's weights bring an embedding or head that DFLASH does not use",
            "nothing to do unless acceptance is low",
        )


@rule
def head(view: PairView) -> Iterator[Finding]:
    """The draft's logits go through the target's head."""
    tied = view.facts()["tied_head"]
    stored = next((v for k, v in (view.target_tensors or {}).items() if k.endswith("lm_head.weight")), None)
    if view.target_tensors and not tied and stored is None and not any("lm_head" in k for k in view.target_tensors):
        yield Finding(
            "head-missing",
            "error",
            "the target's weights hold no lm_head and its configuration does not tie it",
            "set tie_word_embeddings as published or download the missing file",
        )
    packed = any("lm_head" in k and k.endswith((".qweight", ".weight_packed")) for k in view.target_tensors or {})
    if packed or (stored is not None and stored[0] not in FLOAT_DTYPES):
        yield Finding(
            "head-quantised",
            "warning",
            "the target's lm_head is quantised, so the draft's candidates carry its error "
            "and the draft runs without its graph",
            "measure acceptance, or use a checkpoint with a plain lm_head",
        )


@rule
def vocabulary(view: PairView) -> Iterator[Finding]:
    """Candidates are target token ids."""
    ours, theirs = view.draft_text.get("vocab_size"), view.target_text.get("vocab_size")
    if ours is not None and theirs is not None and ours != theirs:
        yield Finding(
            "vocab-size",
            "error",
            f"the draft's vocabulary has {ours} entries, the target's {theirs}",
            "use the draft that was trained for this target",
        )
    if view.draft_tokenizer and view.target_tokenizer:
        mine, other = (t.get("model", {}).get("vocab") for t in (view.draft_tokenizer, view.target_tokenizer))
        if mine != other or _added(view.draft_tokenizer) != _added(view.target_tokenizer):
            yield Finding(
                "tokenizer-differs",
                "error",
                "the draft's folder holds another tokenizer than the target's",
                "use the draft that was trained for this target",
            )


def _ids(*values: Any) -> set[int]:
    return {i for value in values if value is not None for i in (value if isinstance(value, list) else [value])}


def _tensor(table: dict[str, tuple[str, tuple[int, ...]]] | None, name: str) -> tuple[int, ...] | None:
    for key in (name, "model." + name):
        if table and key in table:
            return table[key][1]
    return None


def _added(tokenizer: Any) -> dict[str, int]:
    return {t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}
