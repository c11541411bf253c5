"""Rewrite a hybrid pair's target as the same function in Qwen3-Next form, for SGLang lines without Qwen3.5 text models.

SGLang 0.5.16 serves Qwen3.5 only inside its vision-language class, and builds a mixture of experts in every
Qwen3-Next layer; so each MLP becomes the shared expert (its gate of zeros halves it, so the down projection is
doubled, both exact in bfloat16) beside routed experts of zeros. The draft is used as it is.

    python -m models.convert models/tiny-hybrid/target OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

EXPERTS = 8
EXPERT_WIDTH = 256
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def to_qwen3_next(source: Path, out: Path) -> None:
    """Write OUT/{config.json,model.safetensors,tokenizer files}."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "qwen3_5_text":
        raise SystemExit(
            f"{source} is a {config.get('model_type')}, not a Qwen3.5 text model: only those are converted."
        )
    weights = load_file(source / "model.safetensors")
    converted = {
        name: tensor for name, tensor in weights.items() if ".linear_attn.in_proj" not in name and ".mlp." not in name
    }
    converted.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        if prefix + "linear_attn.in_proj_qkv.weight" in weights:
            converted |= _fused_projections(weights, prefix + "linear_attn.", config)
        converted |= _mixture(weights, prefix + "mlp.", config["hidden_size"])
    out.mkdir(parents=True, exist_ok=True)
    save_file(converted, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(_config(config), indent=1), encoding="utf-8")
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, out / name)


def _fused_projections(
    weights: dict[str, torch.Tensor], prefix: str, config: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Qwen3-Next stores, per key head, its q, k, v and z rows together, and its b and a rows."""
    key_heads, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    key_width = key_heads * dim
    qkv, z, b, a = (weights[prefix + f"in_proj_{part}.weight"] for part in ("qkv", "z", "b", "a"))
    grouped = [
        part.unflatten(0, (key_heads, -1)) for part in (*qkv.split([key_width, key_width, len(qkv) - 2 * key_width]), z)
    ]
    return {
        prefix + "in_proj_qkvz.weight": torch.cat(grouped, 1).flatten(0, 1).contiguous(),
        prefix + "in_proj_ba.weight": torch.cat([t.unflatten(0, (key_heads, -1)) for t in (b, a)], 1)
        .flatten(0, 1)
        .contiguous(),
    }


def _mixture(weights: dict[str, torch.Tensor], prefix: str, hidden: int) -> dict[str, torch.Tensor]:
    dtype = weights[prefix + "down_proj.weight"].dtype
    out = {prefix + f"shared_expert.{n}.weight": weights[prefix + f"{n}.weight"] for n in ("gate_proj", "up_proj")}
    out[prefix + "shared_expert.down_proj.weight"] = weights[prefix + "down_proj.weight"] * 2
    out[prefix + "shared_expert_gate.weight"] = torch.zeros(1, hidden, dtype=dtype)
    out[prefix + "gate.weight"] = torch.zeros(EXPERTS, hidden, dtype=dtype)
    for expert in range(EXPERTS):
        for name in ("gate_proj", "up_proj"):
            out[f"{prefix}experts.{expert}.{name}.weight"] = torch.zeros(EXPERT_WIDTH, hidden, dtype=dtype)
        out[f"{prefix}experts.{expert}.down_proj.weight"] = torch.zeros(hidden, EXPERT_WIDTH, dtype=dtype)
    return out


def _config(config: dict[str, Any]) -> dict[str, Any]:
    dropped = ("attn_output_gate", "mamba_ssm_dtype")
    return {k: v for k, v in config.items() if k not in dropped} | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "tie_word_embeddings": False,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_WIDTH,
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": config["intermediate_size"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m models.convert TARGET OUT")
    to_qwen3_next(Path(sys.argv[1]), Path(sys.argv[2]))
