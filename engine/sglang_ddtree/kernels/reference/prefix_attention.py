"""Attention of every verify row over the committed prefix alone, as a part that the tree's rows are added to."""

from __future__ import annotations

import torch


def prefix_attention(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slot_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    scale: float,
    *,
    page_size: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output [bs*T, HQ, D] in q's dtype, logarithms of the sums of exponentials [HQ, bs*T] float32), from float64.

    Arguments as of ``tree_attention``.  Rows of a request without a prefix are NaN: nobody may read them.
    """
    rows, heads, dim = q.shape
    bs = prefix_lens.shape[0]
    group = heads // k_buffer.shape[1]
    per_request = q.view(bs, rows // bs, heads, dim).double()
    out = torch.full((bs, rows // bs, heads, dim), torch.nan, dtype=torch.float64, device=q.device)
    lse = torch.full((heads, bs, rows // bs), torch.nan, dtype=torch.float64, device=q.device)
    for b in range(bs):
        position = torch.arange(int(prefix_lens[b]), device=q.device)
        if not len(position):
            continue
        slots = slot_table[b][position // page_size].long() * page_size + position % page_size
        k = k_buffer[slots].double().repeat_interleave(group, 1)
        v = v_buffer[slots].double().repeat_interleave(group, 1)
        scores = torch.einsum("thd,nhd->htn", per_request[b], k) * scale
        out[b] = torch.einsum("htn,nhd->thd", scores.softmax(-1), v)
        lse[:, b] = scores.logsumexp(-1)
    return out.view(rows, heads, dim).to(q.dtype), lse.view(heads, rows).float().contiguous()
