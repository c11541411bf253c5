"""The target's token after every row: its arg-max, or one sample of the request's own distribution.

Sampling each row on its own and then walking by equality is lossless: see docs, "how it works".
"""

from __future__ import annotations

from typing import Any

import torch


def target_tokens(logits: torch.Tensor, sampling: Any, width: int, positions: torch.Tensor) -> torch.Tensor:
    """logits [bs*T, V], sampling = SGLang's SamplingBatchInfo (or None), positions [bs, T] of the rows -> [bs, T] int64."""
    greedy = torch.argmax(logits, dim=-1)
    if sampling is None or sampling.is_all_greedy:
        return greedy.view(-1, width)
    if sampling.sampling_seed is not None:
        sampled = seeded_rows(logits, sampling, width, positions)
    else:
        sampled = sample_rows(logits, sampling, width)
    per_row = (sampling.top_ks <= 1).repeat_interleave(width)
    return torch.where(per_row, greedy, sampled).view(-1, width)


def agree_on_samples(chosen: torch.Tensor, sampling: Any, group: Any) -> None:
    """Every rank takes the first one's tokens, in place, where each of them sampled with noise of its own.

    group: SGLang's tensor-parallel group.  Arg-max tokens are equal anyway, since every rank has the same logits.
    """
    if int(group.world_size) > 1 and sampling is not None and not sampling.is_all_greedy:
        group.broadcast(chosen, src=0)


def sample_rows(logits: torch.Tensor, sampling: Any, width: int) -> torch.Tensor:
    """One sample per row from softmax(logits / T) after top-k, top-p and min-p of the row's request, [bs*T] int64."""
    temperatures = sampling.temperatures.view(-1).float().repeat_interleave(width)[:, None]
    scaled = logits.float() / temperatures
    if sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling:
        scaled = _filtered(scaled, sampling, width)
    # Gumbel-max: the arg-max of log p + Gumbel noise is a sample of p.
    noise = torch.empty_like(scaled).exponential_().clamp_(min=1e-30).log_().neg_()
    return torch.argmax(scaled + noise, dim=-1)


def seeded_rows(logits: torch.Tensor, sampling: Any, width: int, positions: torch.Tensor) -> torch.Tensor:
    """SGLang's own seeded sampling (with --enable-deterministic-inference), which hashes seed and position: a row draws
    what decoding token by token would draw at its place.  [bs*T] int64."""
    from sglang.srt.layers.sampler import sampling_from_probs_torch, top_k_top_p_min_p_sampling_from_probs_torch

    def rows(values: torch.Tensor) -> torch.Tensor:
        return values.view(-1).repeat_interleave(width)

    seeds, places = rows(sampling.sampling_seed), positions.reshape(-1)
    probs = torch.softmax(logits / rows(sampling.temperatures)[:, None], dim=-1)
    if not (sampling.need_top_k_sampling or sampling.need_top_p_sampling):
        return sampling_from_probs_torch(probs, sampling_seed=seeds, positions=places).long()
    chosen = top_k_top_p_min_p_sampling_from_probs_torch(
        probs, rows(sampling.top_ks), rows(sampling.top_ps), rows(sampling.min_ps), False, seeds, places
    )
    return chosen.long()


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
