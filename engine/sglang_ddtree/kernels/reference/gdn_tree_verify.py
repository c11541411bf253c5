"""Gated DeltaNet over a tree without a state per node (tree form of the WY representation)."""

from __future__ import annotations

import torch

from ...tables import TreeTables
from .gdn import gates, unit


def gdn_tree_verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    tables: TreeTables,
) -> torch.Tensor:
    """Outputs of every tree row; ``state`` is only read.

    q, k [bs, T, H, K], v [bs, T, HV, V] after the convolution, a, b [bs, T, HV]; a_log, dt_bias [HV];
    state [n_slots, HV, V, K]; slots [bs] (negative: the request is padding and its output 0).
    Returns [bs, T, HV, V] in v's dtype.

    With G_i the sum of log decays from the root to i, and anc(i) the strict ancestors of i:
      u_i = beta_i (v_i - e^{G_i} S0 k_i) - sum_{j in anc(i)} beta_i e^{G_i - G_j} (k_i . k_j) u_j
      o_i = e^{G_i} S0 q_i + (q_i . k_i) u_i + sum_{j in anc(i)} e^{G_i - G_j} (q_i . k_j) u_j
    """
    bs, width, heads, key_dim = q.shape
    group = v.shape[2] // heads
    q = (unit(q) * key_dim**-0.5).repeat_interleave(group, 2)
    k = unit(k).repeat_interleave(group, 2)
    log_decay, beta = gates(a, b, a_log, dt_bias)
    ancestors = tables.anc.long()
    present = ancestors >= 0
    index = ancestors.clamp(min=0)

    def of_ancestor(x: torch.Tensor, level: int) -> torch.Tensor:
        """x [bs, T, ...] -> rows of each row's level-th ancestor (row 0 where it has none)."""
        rows = index[:, :, level].reshape(bs, width, *([1] * (x.dim() - 2)))
        return x.gather(1, rows.expand(bs, width, *x.shape[2:]))

    depth_levels = int(present.any(1).any(0).sum())
    total = log_decay.clone()
    for level in range(depth_levels):
        total += of_ancestor(log_decay, level) * present[:, :, level, None]
    start = state[slots.clamp(min=0).long()].float()
    decay = total.exp()[..., None]
    u = beta[..., None] * (v.float() - decay * torch.einsum("bhvk,bthk->bthv", start, k))
    out = decay * torch.einsum("bhvk,bthk->bthv", start, q)

    pair = []
    for level in range(depth_levels):
        factor = (total - of_ancestor(total, level)).clamp(max=0).exp() * present[:, :, level, None]
        pair.append((factor, of_ancestor(k, level)))
    depth = present.sum(-1)
    for d in range(1, depth_levels + 1):  # rows of depth d need the final u of their ancestors only
        at_depth = (depth == d)[..., None, None]
        for level in range(d):
            factor, key = pair[level]
            change = (beta * factor * (k * key).sum(-1))[..., None] * of_ancestor(u, level)
            u = torch.where(at_depth, u - change, u)
    out = out + (q * k).sum(-1)[..., None] * u
    for level, (factor, key) in enumerate(pair):
        out = out + (factor * (q * key).sum(-1))[..., None] * of_ancestor(u, level)
    return torch.where((slots >= 0)[:, None, None, None], out, 0.0).to(v.dtype)
