"""Attention of the verify pass over a paged KV cache."""

from __future__ import annotations

import torch


def tree_attention(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slot_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    tree_slots: torch.Tensor,
    bits: torch.Tensor,
    scale: float,
    *,
    starts: torch.Tensor | None = None,
    page_size: int = 1,
) -> torch.Tensor:
    """q [bs*T, HQ, D] -> [bs*T, HQ, D] in q's dtype, computed in float64.

    k_buffer, v_buffer [slots, HK, D]; prefix_lens [bs]; tree_slots [bs, T]; bits [bs, T, W] of ``ancestor_bits``.
    The slot of prefix position p is ``slot_table[b, p // page_size] * page_size + p % page_size``; with
    ``starts`` [bs] the table is flat and request b's entries begin at starts[b].
    """
    rows, heads, dim = q.shape
    bs, width, _ = bits.shape
    group = heads // k_buffer.shape[1]
    column = torch.arange(width, device=q.device)
    out = torch.empty((bs, width, heads, dim), dtype=torch.float64, device=q.device)
    for b in range(bs):
        prefix = int(prefix_lens[b])
        position = torch.arange(prefix, device=q.device)
        pages = slot_table[b] if starts is None else slot_table[int(starts[b]) :]
        slots = pages[position // page_size].long() * page_size + position % page_size
        slots = torch.cat([slots, tree_slots[b].long()])
        k = k_buffer[slots].double().repeat_interleave(group, 1)
        v = v_buffer[slots].double().repeat_interleave(group, 1)
        ancestor = (bits[b][:, column // 64] >> (column % 64)) & 1
        tree = (ancestor == 1) | torch.eye(width, dtype=torch.bool, device=q.device)
        visible = torch.cat([tree.new_ones((width, prefix)), tree], dim=1)
        scores = torch.einsum("thd,nhd->htn", q.view(bs, width, heads, dim)[b].double(), k) * scale
        scores = scores.masked_fill(~visible, -torch.inf)
        out[b] = torch.einsum("htn,nhd->thd", scores.softmax(-1), v)
    return out.view(rows, heads, dim).to(q.dtype)
