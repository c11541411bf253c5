"""Transformer layers as functions over tensors, so that each compiles once and every layer of a model shares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .spec import RMS_EPS, ROPE_THETA

Tensor = torch.Tensor


class Compiled:
    """A function that goes through torch.compile while ``Compiled.enabled`` and a gradient is wanted."""

    enabled = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if not (Compiled.enabled and torch.is_grad_enabled()):
            return self.function(*args)
        if self.compiled is None:
            self.compiled = torch.compile(self.function, dynamic=False)
        return self.compiled(*args)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def rms_norm(x: Tensor, weight: Tensor, zero_centred: bool = False) -> Tensor:
    """RMS norm in float32; the hybrid target stores its norm weights as (weight - 1)."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + RMS_EPS)
    return (y * (1.0 + weight)).to(x.dtype) if zero_centred else y.to(x.dtype) * weight.to(x.dtype)


def rope_tables(positions: int, dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, dim / 2]."""
    inverse = 1.0 / ROPE_THETA ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.arange(positions).float()[:, None] * inverse[None]
    return angles.cos(), angles.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dims of x [B, T, heads, dim] (half-split pairs); cos, sin [T, r] or [B, T, r]."""
    r = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x[..., :r].float(), x[..., r : 2 * r].float()
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([turned, x[..., 2 * r :]], -1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Grouped-query attention over [B, T, heads, dim] tensors."""
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, is_causal=causal
    )
    return out.transpose(1, 2)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return linear(F.silu(linear(x, gate)) * linear(x, up), down)


def _heads(x: Tensor, weight: Tensor, dim: int) -> Tensor:
    return linear(x, weight).unflatten(-1, (-1, dim))


def _dense_layer(x: Tensor, rotary: tuple[Tensor, Tensor], w: dict[str, Tensor], dim: int) -> Tensor:
    h = rms_norm(x, w["input_layernorm"])
    q = rope(rms_norm(_heads(h, w["q_proj"], dim), w["q_norm"]), *rotary)
    k = rope(rms_norm(_heads(h, w["k_proj"], dim), w["k_norm"]), *rotary)
    mixed = attention(q, k, _heads(h, w["v_proj"], dim), causal=True)
    x = x + linear(mixed.flatten(-2), w["o_proj"])
    return x + swiglu(rms_norm(x, w["post_attention_layernorm"]), w["gate_proj"], w["up_proj"], w["down_proj"])


def _gated_attention_layer(x: Tensor, rotary: tuple[Tensor, Tensor], w: dict[str, Tensor], dim: int) -> Tensor:
    h = rms_norm(x, w["input_layernorm"], True)
    q, gate = _heads(h, w["q_proj"], 2 * dim).chunk(2, -1)
    q = rope(rms_norm(q, w["q_norm"], True), *rotary)
    k = rope(rms_norm(_heads(h, w["k_proj"], dim), w["k_norm"], True), *rotary)
    mixed = attention(q, k, _heads(h, w["v_proj"], dim), causal=True).flatten(-2)
    x = x + linear(mixed * torch.sigmoid(gate.flatten(-2)), w["o_proj"])
    return x + swiglu(rms_norm(x, w["post_attention_layernorm"], True), w["gate_proj"], w["up_proj"], w["down_proj"])


def _draft_layer(
    h: Tensor,
    context: Tensor,
    mask: Tensor,
    block_rotary: tuple[Tensor, Tensor],
    context_rotary: tuple[Tensor, Tensor],
    w: dict[str, Tensor],
    dim: int,
) -> Tensor:
    """Queries are the block's rows; keys are the context features, then the block's rows."""
    y = rms_norm(h, w["input_layernorm"])
    q = rope(rms_norm(_heads(y, w["q_proj"], dim), w["q_norm"]), *block_rotary)
    context_k = rope(rms_norm(_heads(context, w["k_proj"], dim), w["k_norm"]), *context_rotary)
    block_k = rope(rms_norm(_heads(y, w["k_proj"], dim), w["k_norm"]), *block_rotary)
    v = torch.cat([_heads(context, w["v_proj"], dim), _heads(y, w["v_proj"], dim)], 1)
    mixed = attention(q, torch.cat([context_k, block_k], 1), v, mask=mask)
    h = h + linear(mixed.flatten(-2), w["o_proj"])
    return h + swiglu(rms_norm(h, w["post_attention_layernorm"]), w["gate_proj"], w["up_proj"], w["down_proj"])


def _head_loss(h: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy per token, float32, shape of ``labels``."""
    logits = linear(h, weight).float()
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


dense_layer = Compiled(_dense_layer)
gated_attention_layer = Compiled(_gated_attention_layer)
draft_layer = Compiled(_draft_layer)
head_loss = Compiled(_head_loss)
