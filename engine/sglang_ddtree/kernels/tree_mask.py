"""Tree masks for attention backends that take one: a plain [T, T] block, or SGLang Triton's full rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .ancestor_bits import ancestor_bits
from .common import Variant, require, require_runnable

_ROWS, _COLUMNS = 8, 128


@triton.jit
def _tree_mask_kernel(
    bits_ptr, mask_ptr, prefix_ptr, T, W, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FULL: tl.constexpr
):
    b = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < T)[:, None] & (column < T)[None, :]
    word = tl.load(bits_ptr + (b * T + row)[:, None] * W + (column // 64)[None, :], mask=inside, other=0)
    seen = ((word >> (column % 64).to(tl.int64)[None, :]) & 1) == 1
    seen = seen | (row[:, None] == column[None, :])
    if FULL:
        # Request b's rows start after the rows (prefix + T wide) of all requests before it.
        start = b * 0
        for i in range(tl.program_id(2)):
            start += T * (tl.load(prefix_ptr + i).to(tl.int64) + T)
        prefix = tl.load(prefix_ptr + b).to(tl.int64)
        at = start + row[:, None] * (prefix + T) + prefix + column[None, :]
    else:
        at = (b * T + row[:, None]) * T + column[None, :]
    tl.store(mask_ptr + at, seen.to(tl.uint8), mask=inside)


def tree_mask(
    tables: TreeTables,
    *,
    bits: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    prefix_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """The twin of ``reference.tree_mask``: [bs, T, T] bool, True where row i may read row j.

    With ``prefix_lens`` [bs], ``out`` is a flat uint8 (or bool) buffer of SGLang's full-mask layout: request b has T
    rows of prefix + T entries, and only the last T entries of each row are written (prefix entries are not read).
    """
    require_runnable(tables.anc, "tree_mask")
    bs, width, _ = tables.anc.shape
    bits = ancestor_bits(tables) if bits is None else bits
    full = prefix_lens is not None
    require(out is not None or not full, "tree_mask", "the full layout needs the buffer to write into.")
    if out is None:
        out = torch.empty((bs, width, width), dtype=torch.bool, device=tables.anc.device)
    if bs:
        grid = (triton.cdiv(width, _COLUMNS), triton.cdiv(width, _ROWS), bs)
        _tree_mask_kernel[grid](
            bits, out.view(torch.uint8), bits if prefix_lens is None else prefix_lens, width, bits.shape[2],
            ROWS=_ROWS, COLUMNS=_COLUMNS, FULL=full, num_warps=4,
        )  # fmt: skip
    return out


def variants() -> Iterator[Variant]:
    signature = {"bits_ptr": "*i64", "mask_ptr": "*u8", "prefix_ptr": "*i64", "T": "i32", "W": "i32"}
    for full in (True, False):
        constexprs = {"ROWS": _ROWS, "COLUMNS": _COLUMNS, "FULL": full}
        yield Variant("tree_mask", _tree_mask_kernel, signature, constexprs, label=f"full={full}")
