"""Ancestors of every row as bits: the form in which the verify kernels test visibility."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .common import Variant, np2, require_runnable

WORD = 64
_ROWS = 16


@triton.jit
def _ancestor_bits_kernel(
    anc_ptr, bits_ptr, rows, L: tl.constexpr, LP: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    hop = tl.arange(0, LP)
    inside = row < rows
    anc = tl.load(anc_ptr + row[:, None] * L + hop[None, :], mask=inside[:, None] & (hop < L)[None, :], other=-1)
    present = anc >= 0
    bit = tl.full((ROWS, LP), 1, tl.int64) << (anc & 63).to(tl.int64)
    for word in range(W):
        # Ancestors are distinct rows, so adding their bits is the same as or-ing them.
        value = tl.sum(tl.where(present & ((anc >> 6) == word), bit, 0), 1)
        tl.store(bits_ptr + row * W + word, value, mask=inside)


def ancestor_bits(tables: TreeTables, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """tables.anc [bs, T, L] -> [bs, T, ceil(T/64)] int64: bit j%64 of word j//64 = row j is a strict ancestor."""
    require_runnable(tables.anc, "ancestor_bits")
    bs, width, levels = tables.anc.shape
    words = triton.cdiv(width, WORD)
    if out is None:
        out = torch.empty((bs, width, words), dtype=torch.int64, device=tables.anc.device)
    rows = bs * width
    if rows:
        _ancestor_bits_kernel[(triton.cdiv(rows, _ROWS),)](
            tables.anc, out, rows, L=levels, LP=np2(levels), W=words, ROWS=_ROWS, num_warps=1
        )
    return out


def variants() -> Iterator[Variant]:
    signature = {"anc_ptr": "*i32", "bits_ptr": "*i64", "rows": "i32"}
    for words in (1, 17):
        constexprs = {"L": 15, "LP": 16, "W": words, "ROWS": _ROWS}
        yield Variant("ancestor_bits", _ancestor_bits_kernel, signature, constexprs, num_warps=1, label=f"W{words}")
