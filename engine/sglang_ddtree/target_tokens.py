"""The target's token after every row: its arg-max, or one sample of the request's own distribution.

Sampling each row on its own and then walking by equality is lossless: see docs, "how it works".
"""

from __future__ import annotations

from typing import Any

import torch


def target_tokens(logits: torch.Tensor, sampling: Any, width: int) -> torch.Tensor:
    """logits [bs*T, V], sampling = SGLang's SamplingBatchInfo (or None) -> [bs, T] int64."""
    greedy = torch.argmax(logits, dim=-1)
    if sampling is None or sampling.is_all_greedy:
        return greedy.view(-1, width)
    sampled = sample_rows(logits, sampling, width)
    per_row = (sampling.top_ks <= 1).repeat_interleave(width)
    return torch.where(per_row, greedy, sampled).view(-1, width)


def sample_rows(logits: torch.Tensor, sampling: Any, width: int) -> torch.Tensor:
    """One sample per row from softmax(logits / T) after top-k, top-p and min-p of the row's request, [bs*T] int64."""
    temperatures = sampling.temperatures.view(-1).float().repeat_interleave(width)[:, None]
    scaled = logits.float() / temperatures
    if sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling:
        scaled = _filtered(scaled, sampling, width)
    # Gumbel-max: the arg-max of log p + Gumbel noise is a sample of p.
    noise = torch.empty_like(scaled).exponential_().clamp_(min=1e-30).log_().neg_()
    return torch.argmax(scaled + noise, dim=-1)


def _filtered(scaled: torch.Tensor, sampling: Any, width: int) -> torch.Tensor:
    """Logits with -inf where the filters remove a token; all filters look at the unfiltered distribution, as in SGLang."""
    ordered, order = scaled.sort(dim=-1, descending=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    rank = torch.arange(scaled.shape[-1], device=scaled.device)[None]
    keep = rank < sampling.top_ks.view(-1).repeat_interleave(width)[:, None]
    keep &= before <= sampling.top_ps.view(-1).repeat_interleave(width)[:, None]
    if sampling.need_min_p_sampling:
        keep &= probs >= probs[:, :1] * sampling.min_ps.view(-1).repeat_interleave(width)[:, None]
    keep[:, 0] = True
    kept = torch.where(keep, ordered, -torch.inf)
    return torch.full_like(scaled, -torch.inf).scatter_(1, order, kept)
