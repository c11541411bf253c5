"""Inputs of a layer at the dimensions of Qwen3.6-27B, several times over, so that no cache is warmer than in a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..kernels.ancestor_bits import ancestor_bits
from ..selftest_data import Random

HEADS = (24, 4, 256)  # query heads, KV heads, their size


@dataclass(frozen=True)
class AttentionInputs:
    """One layer's attention of a verify pass, over several KV pools; every slot of a pool is used once."""

    q: torch.Tensor
    pools: list[torch.Tensor]
    table: torch.Tensor
    lengths: torch.Tensor
    tree: torch.Tensor
    bits: torch.Tensor
    query_starts: torch.Tensor

    @classmethod
    def make(
        cls, width: int, bs: int, context: int, heads: tuple[int, int, int] = HEADS, device: str = "cuda"
    ) -> AttentionInputs:
        random = Random(width, device)
        query_heads, kv_heads, dim = heads
        slots = bs * (context + width)
        layers = max(2, min(8, (256 << 20) // (slots * kv_heads * dim * 4))) if device == "cuda" else 1
        kind = torch.bfloat16 if device == "cuda" else torch.float16
        order = random.permutation(slots)
        return cls(
            q=torch.empty((bs * width, query_heads, dim), dtype=kind, device=device).normal_(),
            pools=[torch.empty((2, slots, kv_heads, dim), dtype=kind, device=device).normal_() for _ in range(layers)],
            table=order[: bs * context].view(bs, context).int(),
            lengths=torch.full((bs,), context, device=device),
            tree=order[bs * context :].view(bs, width),
            bits=ancestor_bits(random.tree(bs, width - 1, 15, spine=8)),
            query_starts=torch.arange(0, bs * width + 1, width, dtype=torch.int32, device=device),
        )

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    def arguments(self, pool: torch.Tensor) -> tuple[Any, ...]:
        """Those of ``tree_attention`` after q."""
        return (pool[0], pool[1], self.table, self.lengths, self.tree, self.bits, self.scale)
