"""Top-K log-probabilities of each row of a logit matrix."""

from __future__ import annotations

import torch


def topk_lse(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [N, V] (any float type), 1 <= k <= V -> (logp [N, k] float32, ids [N, k] int64).

    ``logp = logit - logsumexp(row)`` in float32, descending; equal logits are ordered by the smaller id.
    A row with a NaN (or without a finite maximum) offers no candidate: all its log-probabilities are -inf.
    """
    x = logits.float()
    values, ids = _top(x, k)
    lse = torch.logsumexp(x, dim=-1, keepdim=True)
    logp = values - lse
    return torch.where(torch.isfinite(lse), logp, torch.full_like(logp, -torch.inf)), ids


def _top(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = torch.topk(x, k, dim=-1)
    if bool(((x >= values[:, -1:]).sum(-1) == k).all()):  # no tie reaches over the edge of the k best
        ids, order = ids.sort(dim=-1)
        values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
        return values, ids.gather(1, order)
    values, ids = x.sort(dim=-1, descending=True, stable=True)
    return values[:, :k].contiguous(), ids[:, :k].contiguous()
