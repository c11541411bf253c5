"""Shared arithmetic of the Gated DeltaNet references: gates, normalisation, one recurrent step."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """a, b [N, HV] -> (g [N, HV] <= 0, the log decay; beta [N, HV] in 0..1, the write strength), float32."""
    g = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float(), 1.0, 20.0)
    return g, b.float().sigmoid()


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum(x^2) + 1e-6) along the last dimension, float32 (SGLang's q and k normalisation)."""
    x = x.float()
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def write(state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """One recurrent step: state [..., HV, V, K], k [..., HV, K], v [..., HV, V], g, beta [..., HV] -> new state."""
    state = state * g.exp()[..., None, None]
    u = (v - (state * k[..., None, :]).sum(-1)) * beta[..., None]
    return state + u[..., :, None] * k[..., None, :]
