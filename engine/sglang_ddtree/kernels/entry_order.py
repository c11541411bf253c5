"""What a narrower tree would have accepted, read off a walk: one program per request."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .common import Variant, np2, require, require_runnable


@triton.jit(do_not_specialize=["T", "spine"])
def _entry_order_kernel(
    path_ptr, commit_ptr, score_ptr, dep_ptr, rank_ptr, child_ptr, offsets_ptr, count_ptr, out_ptr, T, spine, stride_path,
    L: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, TP)
    used = (row > 0) & (row < tl.load(count_ptr + b))
    score = tl.load(score_ptr + b * T + row, mask=used, other=0.0)
    depth = tl.load(dep_ptr + b * T + row, mask=used, other=0)
    offsets = offsets_ptr + b * (L + 2)
    # The forced chain comes first: it is the first row of each level that it reaches.
    forced = used & (depth <= spine) & (row == tl.load(offsets + depth, mask=used, other=-1))
    others = used & ~forced
    forced_rows = tl.sum(forced.to(tl.int32), 0)
    length = tl.load(commit_ptr + b)
    out = out_ptr + b * (L + 2)
    best, chain, accepted = (
        0,
        0,
        0,
    )  # the chain's row at this level (-1: it has ended), its nodes, and those walked over
    for level in range(1, L + 1):
        walked = tl.load(path_ptr + b * stride_path + level).to(tl.int32)
        alive = level < length
        mine = tl.load(score_ptr + b * T + walked)
        earlier = others & ((score > mine) | ((score == mine) & (row < walked)))
        first = (level <= spine) & (tl.load(offsets + level) == walked)
        order = tl.where(first, level, tl.sum(earlier.to(tl.int32), 0) + forced_rows + 1)
        tl.store(out + level - 1, tl.where(alive, order, 0).to(tl.int64))
        child = tl.load(child_ptr + b * T + tl.maximum(best, 0))
        ranked = tl.load(rank_ptr + b * T + tl.maximum(child, 0))
        best = tl.where((best >= 0) & (child > 0) & (ranked == 0), child, -1)
        chain += (best > 0).to(tl.int32)
        accepted += (alive & (best == walked)).to(tl.int32)
    tl.store(out + L, accepted.to(tl.int64))
    tl.store(out + L + 1, chain.to(tl.int64))


def entry_order(tables: TreeTables, path: torch.Tensor, commit_lens: torch.Tensor, spine: int) -> torch.Tensor:
    """The twin of ``sglang_ddtree.entry_order``: path [bs, block], commit_lens [bs] -> [bs, L + 2] int64."""
    op = "entry_order"
    require_runnable(path, op)
    bs, width, levels = tables.anc.shape
    require(path.stride(1) == 1 and path.shape[1] > levels, op, "path must hold a row per level, contiguously.")
    out = torch.empty((bs, levels + 2), dtype=torch.int64, device=path.device)
    if bs:
        _entry_order_kernel[(bs,)](
            path, commit_lens, tables.score, tables.dep, tables.rank, tables.first_child, tables.level_offsets,
            tables.count, out, width, spine, path.stride(0), L=levels, TP=np2(width), num_warps=4,
        )  # fmt: skip
    return out


def variants() -> Iterator[Variant]:
    pointers = dict.fromkeys(("path_ptr", "out_ptr"), "*i64") | {"score_ptr": "*fp32"}
    pointers |= dict.fromkeys(("commit_ptr", "dep_ptr", "rank_ptr", "child_ptr", "offsets_ptr", "count_ptr"), "*i32")
    signature = pointers | {"T": "i32", "spine": "i32", "stride_path": "i32"}
    for rows in (64, 1024):
        yield Variant("entry_order", _entry_order_kernel, signature, {"L": 15, "TP": rows}, label=f"{rows} rows")
