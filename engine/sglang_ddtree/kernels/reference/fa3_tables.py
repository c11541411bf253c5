"""Page tables of FlashAttention's expand pass over a tree."""

from __future__ import annotations

import torch

from ...tables import TreeTables


def fa3_tables(tables: TreeTables, tree_slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """tree_slots [bs, T] -> (page_table [bs*T, L+1] int32, cache_seqlens [bs*T] int32).

    Row i lists the slots of its ancestors, root first, then its own; the rest of the row is 0.
    """
    bs, width, levels = tables.anc.shape
    page_table = torch.zeros((bs * width, levels + 1), dtype=torch.int32, device=tables.anc.device)
    lengths = torch.zeros((bs * width,), dtype=torch.int32, device=tables.anc.device)
    for b in range(bs):
        for row in range(width):
            visible = [*[int(x) for x in tables.anc[b, row] if x >= 0][::-1], row]
            page_table[b * width + row, : len(visible)] = tree_slots[b, visible].int()
            lengths[b * width + row] = len(visible)
    return page_table, lengths
