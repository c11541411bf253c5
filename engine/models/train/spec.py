"""Shapes of the pairs and the Hugging Face configurations they are saved with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")
EOS_ID, IM_START_ID, IM_END_ID, MASK_ID = range(4)
VOCAB_SIZE = 2048
MAX_POSITIONS = 4096
BLOCK_SIZE = 16
ROPE_THETA = 1_000_000.0
RMS_EPS = 1e-6
FULL_ATTENTION_INTERVAL = 4


@dataclass(frozen=True)
class PairSpec:
    """One target/draft pair; ``hybrid`` selects Gated DeltaNet with full attention every 4th layer."""

    name: str
    hybrid: bool
    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: tuple[int, ...]
    draft_layers: int
    draft_ffn: int
    gdn_key_heads: int = 2
    gdn_value_heads: int = 4
    gdn_dim: int = 64
    vocab: int = VOCAB_SIZE

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def _tiny(name: str, hybrid: bool, ffn: int) -> PairSpec:
    return PairSpec(
        name,
        hybrid,
        hidden=192,
        layers=4,
        ffn=ffn,
        heads=4,
        kv_heads=2,
        head_dim=64,
        taps=(0, 1, 2),
        draft_layers=2,
        draft_ffn=384,
    )


PAIRS: dict[str, PairSpec] = {
    # Shipped: the four checkpoints together stay under 12 MB.
    "tiny-dense": _tiny("tiny-dense", False, 448),
    "tiny-hybrid": _tiny("tiny-hybrid", True, 384),
    # Made by the script only; attention and GDN head widths are those of the large models.
    "base-dense": PairSpec(
        "base-dense",
        False,
        hidden=384,
        layers=6,
        ffn=768,
        heads=4,
        kv_heads=2,
        head_dim=128,
        taps=(1, 3, 4),
        draft_layers=3,
        draft_ffn=512,
    ),
    "base-hybrid": PairSpec(
        "base-hybrid",
        True,
        hidden=384,
        layers=8,
        ffn=512,
        heads=4,
        kv_heads=2,
        head_dim=128,
        taps=(1, 4, 6),
        draft_layers=3,
        draft_ffn=512,
        gdn_dim=128,
    ),
}


def layer_kinds(spec: PairSpec) -> list[str]:
    """Layer types in Hugging Face's words, one per target layer."""

    def is_full(layer: int) -> bool:
        return not spec.hybrid or (layer + 1) % FULL_ATTENTION_INTERVAL == 0

    return ["full_attention" if is_full(i) else "linear_attention" for i in range(spec.layers)]


def rotary_dim(spec: PairSpec) -> int:
    """Width of a target head that RoPE turns: half of it in hybrid pairs."""
    return spec.head_dim // 2 if spec.hybrid else spec.head_dim


def _common(spec: PairSpec) -> dict[str, Any]:
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.hidden,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": RMS_EPS,
        "rope_theta": ROPE_THETA,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "dtype": "bfloat16",
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
    }


def target_config(spec: PairSpec) -> dict[str, Any]:
    """config.json of the target: Qwen3ForCausalLM or Qwen3_5ForCausalLM, embeddings tied to the head."""
    config = _common(spec) | {
        "tie_word_embeddings": True,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
    }
    if not spec.hybrid:
        return config | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    factor = rotary_dim(spec) / spec.head_dim
    config["rope_parameters"] |= {"partial_rotary_factor": factor}
    return config | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "partial_rotary_factor": factor,
        "attn_output_gate": True,
        "layer_types": layer_kinds(spec),
        # SGLang reads the interval, Transformers the list.
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": spec.gdn_dim,
        "linear_value_head_dim": spec.gdn_dim,
        "linear_num_key_heads": spec.gdn_key_heads,
        "linear_num_value_heads": spec.gdn_value_heads,
        "mamba_ssm_dtype": "float32",
    }


def draft_config(spec: PairSpec) -> dict[str, Any]:
    """config.json of the DFlash draft: no embedding and no head of its own."""
    return _common(spec) | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "tie_word_embeddings": False,
        "intermediate_size": spec.draft_ffn,
        "num_hidden_layers": spec.draft_layers,
        "num_target_layers": spec.layers,
        "layer_types": ["full_attention"] * spec.draft_layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "sliding_window": None,
        "use_sliding_window": False,
        "block_size": BLOCK_SIZE,
        "dflash_config": {"block_size": BLOCK_SIZE, "mask_token_id": MASK_ID, "target_layer_ids": list(spec.taps)},
    }
