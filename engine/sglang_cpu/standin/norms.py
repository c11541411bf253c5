"""Norms and small fusions of the Qwen3.5 and Qwen3-Next models."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def fused_sigmoid_mul_cpu(x: torch.Tensor, gate: torch.Tensor) -> None:
    """x *= sigmoid(gate), in place."""
    x.mul_(torch.sigmoid(gate.reshape(x.shape).float()).to(x.dtype))


def _gemma(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight.float())).to(x.dtype)


def fused_qk_gemma_rmsnorm_cpu(
    q: torch.Tensor, k: torch.Tensor, qw: torch.Tensor, kw: torch.Tensor, eps: float, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm with weight 1 + w of every head of q and k."""
    return _gemma(q.reshape(-1, head_dim), qw, eps), _gemma(k.reshape(-1, head_dim), kw, eps)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    qw: torch.Tensor,
    kw: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same where each query head carries its output gate behind it."""
    both = q_gate.reshape(q_gate.shape[0], num_heads, 2 * head_dim)
    q, gate = both[..., :head_dim], both[..., head_dim:]
    return (
        _gemma(q.reshape(-1, head_dim), qw, eps),
        _gemma(k.reshape(-1, head_dim), kw, eps),
        gate.reshape(-1, head_dim).contiguous(),
    )


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: torch.Tensor, ba: torch.Tensor, num_qk: int, num_v: int, head_qk: int, head_v: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits the joint projections into (q|k|v, z, b, a)."""
    width = 2 * num_qk * head_qk + num_v * head_v
    return (
        qkvz[:, :width].contiguous(),
        qkvz[:, width:].reshape(qkvz.shape[0], num_v, head_v).contiguous(),
        ba[:, :num_v].contiguous(),
        ba[:, num_v:].contiguous(),
    )


def fused_rmsnorm_gated_cpu(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm(x) * w * silu(g)."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * w.float()
    return (y * F.silu(g.float())).to(x.dtype)
