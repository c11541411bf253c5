"""Ancestors of every row as bits."""

from __future__ import annotations

import torch

from ...tables import TreeTables


def ancestor_bits(tables: TreeTables) -> torch.Tensor:
    """tables.anc [bs, T, L] -> [bs, T, ceil(T/64)] int64: bit j%64 of word j//64 = row j is a strict ancestor."""
    bs, width, _ = tables.anc.shape
    bits = torch.zeros((bs, width, (width + 63) // 64), dtype=torch.int64, device=tables.anc.device)
    for level in tables.anc.long().unbind(2):
        one = torch.ones_like(level) << (level.clamp(min=0) % 64)
        word = (level.clamp(min=0) // 64)[..., None]
        bits.scatter_add_(2, word, torch.where(level >= 0, one, 0)[..., None])
    return bits
