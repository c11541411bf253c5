"""A DFlash draft in plain PyTorch, read from its Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from .errors import BaselineError

Tensor = torch.Tensor


@dataclass(frozen=True)
class DraftConfig:
    """What the draft's config.json says, wherever it says it."""

    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    layers: int
    head_dim: int
    eps: float
    rope_theta: float
    windows: tuple[int | None, ...]
    max_positions: int

    @classmethod
    def read(cls, folder: Path) -> DraftConfig:
        path = folder / "config.json"
        try:
            raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            inner = raw.get("dflash_config") or {}
            rope = raw.get("rope_parameters") or {}
            layers = int(raw["num_hidden_layers"])
            kinds = raw.get("layer_types") or ["full_attention"] * layers
            window = raw.get("sliding_window")
            return cls(
                block_size=int(_either(inner, raw, "block_size")),
                mask_token_id=int(_either(inner, raw, "mask_token_id")),
                taps=tuple(int(i) for i in _either(inner, raw, "target_layer_ids")),
                layers=layers,
                head_dim=int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]),
                eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
                windows=tuple(int(window) if kind == "sliding_attention" else None for kind in kinds),
                max_positions=int(raw.get("max_position_embeddings", 4096)),
            )
        except FileNotFoundError as error:
            raise BaselineError(f"{path} does not exist: name the folder of a DFlash draft.") from error
        except (KeyError, TypeError, ValueError) as error:
            raise BaselineError(
                f"{path} does not describe a DFlash draft ({error!r}): check the draft's folder."
            ) from error


def _either(inner: dict[str, Any], outer: dict[str, Any], key: str) -> Any:
    value = inner.get(key, outer.get(key))
    if value is None:
        raise KeyError(key)
    return value


class DraftModel:
    """fc, norms and layers of a DFlash draft; embedding and head are the target's.

    Blocks are independent of each other: [newest token, MASK, ...] at an anchor position sees the features of
    all positions before the anchor, and itself.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.config = DraftConfig.read(folder)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BaselineError(f"{folder} holds no *.safetensors weights: name the folder of the draft itself.")
        self.weights = {
            name.removeprefix("model."): value.to(device, dtype)
            for path in files
            for name, value in load_file(path).items()
        }
        missing = {"fc.weight", "hidden_norm.weight", "norm.weight"} - self.weights.keys()
        if missing:
            raise BaselineError(f"{folder} is no DFlash draft: it lacks {', '.join(sorted(missing))}.")

    def context(self, features: Tensor) -> Tensor:
        """Features [S, taps * H] of one sequence -> what the draft's layers attend to, [S, H]."""
        return self._norm(F.linear(features, self.weights["fc.weight"]), "hidden_norm.weight")

    def blocks(self, context: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """context [S, H], embedded blocks [A, block, H] at positions ``anchors`` [A] -> hidden states [A, block, H]."""
        count, width, _ = embedded.shape
        length, device = context.shape[0], context.device
        block_positions = anchors[:, None] + torch.arange(width, device=device)
        context_positions = torch.arange(length, device=device)
        before = (context_positions < anchors[:, None])[:, None, :].expand(count, width, length)
        h = embedded
        for i in range(self.config.layers):
            mask = self._mask(before, block_positions, context_positions, self.config.windows[i])
            h = self._layer(i, h, context, mask, block_positions, context_positions)
        return self._norm(h, "norm.weight")

    @staticmethod
    def _mask(before: Tensor, rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
        """Full layers see the whole context and block; sliding layers are causal within their window."""
        count, width = rows.shape
        if window is None:
            return torch.cat([before, before.new_ones(count, width, width)], -1)[:, None]
        near = rows[..., None] - columns < window
        inside = rows[:, :, None] - rows[:, None, :]
        return torch.cat([before & near, (inside >= 0) & (inside < window)], -1)[:, None]

    def _layer(self, index: int, h: Tensor, context: Tensor, mask: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        def heads(x: Tensor, name: str) -> Tensor:
            weight, bias = (
                self.weights[f"layers.{index}.{name}.weight"],
                self.weights.get(f"layers.{index}.{name}.bias"),
            )
            return F.linear(x, weight, bias).unflatten(-1, (-1, self.config.head_dim))

        def norm(x: Tensor, name: str) -> Tensor:
            return self._norm(x, f"layers.{index}.{name}.weight")

        y = norm(h, "input_layernorm")
        q = self._rope(norm(heads(y, "self_attn.q_proj"), "self_attn.q_norm"), rows)
        block_k = self._rope(norm(heads(y, "self_attn.k_proj"), "self_attn.k_norm"), rows)
        context_k = self._rope(norm(heads(context, "self_attn.k_proj"), "self_attn.k_norm"), columns)
        context_v = heads(context, "self_attn.v_proj")
        k = torch.cat([context_k.expand(len(h), -1, -1, -1), block_k], 1)
        v = torch.cat([context_v.expand(len(h), -1, -1, -1), heads(y, "self_attn.v_proj")], 1)
        repeat = q.shape[2] // k.shape[2]
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.repeat_interleave(repeat, 2).transpose(1, 2),
            v.repeat_interleave(repeat, 2).transpose(1, 2),
            attn_mask=mask,
        ).transpose(1, 2)
        h = h + F.linear(mixed.flatten(-2), self.weights[f"layers.{index}.self_attn.o_proj.weight"])
        y = norm(h, "post_attention_layernorm")
        gate = F.silu(F.linear(y, self.weights[f"layers.{index}.mlp.gate_proj.weight"]))
        up = F.linear(y, self.weights[f"layers.{index}.mlp.up_proj.weight"])
        return h + F.linear(gate * up, self.weights[f"layers.{index}.mlp.down_proj.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.config.eps)
        return self.weights[name] * y.to(x.dtype)

    def _rope(self, x: Tensor, positions: Tensor) -> Tensor:
        dim = x.shape[-1]
        inverse = 1.0 / self.config.rope_theta ** (torch.arange(0, dim, 2, device=x.device).float() / dim)
        angles = positions.float()[..., None] * inverse
        cos, sin = angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)
        a, b = x[..., : dim // 2].float(), x[..., dim // 2 :].float()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
