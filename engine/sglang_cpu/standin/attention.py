"""Decode and extend attention over a paged KV pool (float32 arithmetic)."""

from __future__ import annotations

from typing import Any

import torch


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    cap: float,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [Tq, H, D], k [Tk, Hk, D], v [Tk, Hk, Dv], mask [Tq, Tk] bool or None -> [Tq, H, Dv]."""
    heads, kv_heads = q.shape[1], k.shape[1]
    q = q.float().transpose(0, 1)
    k = k.float().transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
    v = v.float().transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
    scores = torch.matmul(q, k.transpose(1, 2)) * scale
    if cap and cap > 0:
        scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(heads, 1, 1).expand(heads, scores.shape[1], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.matmul(weights, v).transpose(0, 1)


def decode_attention_cpu(
    q: torch.Tensor,
    k_buf: torch.Tensor,
    v_buf: torch.Tensor,
    k_scale: Any,
    v_scale: Any,
    o: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: Any,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int | None,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """One query row per request; stores k, v at ``loc`` first and writes the result to ``o``."""
    if k is not None and v is not None and not is_cross_attn:
        k_buf[loc] = k.view(-1, *k_buf.shape[1:]).to(k_buf.dtype)
        v_buf[loc] = v.view(-1, *v_buf.shape[1:]).to(v_buf.dtype)
    lens = encoder_lens if is_cross_attn and encoder_lens is not None else seq_lens
    for i, (row, n) in enumerate(zip(req_pool_indices.tolist(), lens.tolist(), strict=True)):
        first = max(0, n - sliding_window) if sliding_window and sliding_window > 0 else 0
        slots = req_to_token[row, first:n].long()
        out = _attend(q[i : i + 1], k_buf[slots], v_buf[slots], sm_scale, logit_cap, None, sinks)
        o[i : i + 1] = out.to(o.dtype)


def extend_attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    k_buf: torch.Tensor,
    v_buf: torch.Tensor,
    k_scale: Any,
    v_scale: Any,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int | None,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """The last ``extend_seq_lens[b]`` tokens of each request are queries; their KV is in the pool already.

    ``tree_mask`` is either bs x T x T (who sees whom among the new tokens; the prefix is visible) or, per
    request, T x (prefix + T) one after the other.
    """
    if is_cross_attn:
        raise NotImplementedError("extend_attention_cpu of the stand-in has no cross attention.")
    bs = seq_lens.shape[0]
    offset = 0
    rows = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    )
    for b, (row, n, new, start) in enumerate(rows):
        if new == 0:
            continue
        slots = req_to_token[row, :n].long()
        mask = None
        if tree_mask is not None and tree_mask.numel() == bs * new * new:
            inside = tree_mask.view(bs, new, new)[b].bool()
            mask = torch.cat([torch.ones(new, n - new, dtype=torch.bool), inside], 1)
        elif tree_mask is not None:
            mask = tree_mask.view(-1)[offset : offset + new * n].view(new, n).bool()
            offset += new * n
        elif is_causal:
            mask = torch.arange(n)[None] <= (torch.arange(new)[:, None] + n - new)
        if sliding_window and sliding_window > 0:
            near = (torch.arange(new)[:, None] + n - new) - torch.arange(n)[None] < sliding_window
            mask = near if mask is None else mask & near
        out = _attend(q[start : start + new], k_buf[slots], v_buf[slots], sm_scale, logit_cap, mask, sinks)
        o[start : start + new] = out.to(o.dtype)
