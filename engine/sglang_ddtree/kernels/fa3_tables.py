"""FlashAttention's cascade needs no mask: each row is a one-token request whose pages are its visible rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .common import Variant, np2, require, require_runnable

_ROWS = 16


@triton.jit
def _fa3_tables_kernel(
    anc_ptr, slot_ptr, page_ptr, length_ptr, rows, T, stride_page,
    L: tl.constexpr, LP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    hop = tl.arange(0, LP)
    anc = tl.load(anc_ptr + row[:, None] * L + hop[None, :], mask=inside[:, None] & (hop < L)[None, :], other=-1)
    present = anc >= 0
    depth = tl.sum(present.to(tl.int32), 1)
    first = (row // T) * T
    slot = tl.load(slot_ptr + first[:, None] + anc, mask=present, other=0)
    # Nearest ancestor last, as a causal reader would see them; the row itself closes the list.
    column = depth[:, None] - 1 - hop[None, :]
    page = page_ptr + row[:, None] * stride_page
    tl.store(page + column, slot.to(tl.int32), mask=present)
    own = tl.load(slot_ptr + row, mask=inside, other=0)
    tl.store(page_ptr + row * stride_page + depth, own.to(tl.int32), mask=inside)
    tl.store(length_ptr + row, depth + 1, mask=inside)


def fa3_tables(
    tables: TreeTables,
    tree_slots: torch.Tensor,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """tree_slots [bs, T] -> (page_table [bs*T, >= L+1] int32, cache_seqlens [bs*T] int32) of the expand pass.

    Row i lists the slots of its ancestors, root first, then its own; entries past cache_seqlens[i] are not written.
    """
    require_runnable(tables.anc, "fa3_tables")
    bs, width, levels = tables.anc.shape
    rows = bs * width
    if out is None:
        page_table = torch.zeros((rows, levels + 1), dtype=torch.int32, device=tables.anc.device)
        out = (page_table, torch.empty((rows,), dtype=torch.int32, device=tables.anc.device))
    require(out[0].shape[1] > levels, "fa3_tables", f"the page table needs {levels + 1} columns.")
    require(tree_slots.is_contiguous(), "fa3_tables", "tree_slots must be contiguous.")
    if rows:
        _fa3_tables_kernel[(triton.cdiv(rows, _ROWS),)](
            tables.anc, tree_slots, out[0], out[1], rows, width, out[0].stride(0),
            L=levels, LP=np2(levels), ROWS=_ROWS, num_warps=2,
        )  # fmt: skip
    return out


def variants() -> Iterator[Variant]:
    signature = {
        "anc_ptr": "*i32", "slot_ptr": "*i64", "page_ptr": "*i32", "length_ptr": "*i32", "rows": "i32", "T": "i32",
        "stride_page": "i32",
    }  # fmt: skip
    for levels in (15,):
        constexprs = {"L": levels, "LP": np2(levels), "ROWS": _ROWS}
        yield Variant("fa3_tables", _fa3_tables_kernel, signature, constexprs, num_warps=2, label=f"L{levels}")
