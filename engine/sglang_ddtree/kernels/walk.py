"""Acceptance: follow the target's own tokens through the tree, one program per request, no host sync."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .common import Variant, np2, require, require_runnable


@triton.jit
def _walk_kernel(
    target_ptr,
    tok_ptr,
    par_ptr,
    path_ptr,
    commit_ptr,
    bonus_ptr,
    out_ptr,
    chain_ptr,
    prefix_ptr,
    new_len_ptr,
    count_ptr,
    truncated_ptr,
    counter_ptr,
    T,
    BLOCK: tl.constexpr,
    TP: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    HAS_CHAIN: tl.constexpr,
    COUNT: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    base = b * T
    row = tl.arange(0, TP)
    inside = row < T
    tok = tl.load(tok_ptr + base + row, mask=inside, other=-1)
    par = tl.load(par_ptr + base + row, mask=inside, other=-2)
    candidate = inside & (row > 0)
    current = 0
    alive = 1
    length = 1
    # The spine is the chain of first children: its accepted length is what linear DFLASH would have taken.
    spine = 1
    on_spine = 1
    want = tl.load(target_ptr + base)
    bonus = want
    tl.store(path_ptr + b * BLOCK, tl.zeros((), tl.int64))
    tl.store(out_ptr + b * BLOCK, want)
    for step in range(1, BLOCK):
        family = candidate & (par == current)
        first = tl.min(tl.where(family, row, TP), 0)
        hit = tl.min(tl.where(family & (tok == want), row, TP), 0)
        alive = alive * tl.where(hit < TP, 1, 0)
        on_spine = on_spine * alive * tl.where(hit == first, 1, 0)
        spine += on_spine
        current = tl.where(alive == 1, hit, current)
        length += alive
        want = tl.load(target_ptr + base + current)
        bonus = want
        tl.store(path_ptr + b * BLOCK + step, current.to(tl.int64))
        tl.store(out_ptr + b * BLOCK + step, tl.where(alive == 1, want, 0))
    tl.store(commit_ptr + b, length)
    tl.store(bonus_ptr + b, bonus)
    if HAS_CHAIN:
        tl.store(chain_ptr + b, spine)
    if COUNT:
        tl.atomic_add(counter_ptr, tl.full((), 1, tl.int64))
        tl.atomic_add(counter_ptr + 1, length.to(tl.int64))
        tl.atomic_add(counter_ptr + 2, spine.to(tl.int64))
        tl.atomic_add(counter_ptr + 3, (tl.load(count_ptr + b) - 1).to(tl.int64))
        tl.atomic_add(counter_ptr + 4, tl.load(truncated_ptr + b).to(tl.int64))
        tl.atomic_add(counter_ptr + 4 + length, tl.full((), 1, tl.int64))
    if HAS_LENGTHS:
        tl.store(new_len_ptr + b, tl.load(prefix_ptr + b).to(tl.int64) + length)


def walk(
    target_tok: torch.Tensor,
    tables: TreeTables,
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    chain_lens: torch.Tensor | None = None,
    prefix_lens: torch.Tensor | None = None,
    new_lens: torch.Tensor | None = None,
    counters: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The twin of ``reference.walk``: target_tok [bs, T] int64 -> (path, commit_lens, bonus, out_tokens).

    Optional static outputs: ``out`` (the four results, contiguous), ``chain_lens`` [bs] int32 (tokens the spine
    alone would have produced), ``new_lens`` [bs] int64 = prefix_lens + commit_lens, and running sums ``counters``
    [5 + block] int64: steps, tokens, chain tokens, nodes, truncated nodes, then steps by accepted depth.
    """
    require_runnable(target_tok, "walk")
    bs, width = target_tok.shape
    block = tables.max_depth + 1
    require(width == tables.width, "walk", f"target_tok has {width} rows, the tables have {tables.width}.")
    require(target_tok.is_contiguous(), "walk", "target_tok must be contiguous.")
    if out is None:
        wide = torch.empty((2, bs, block), dtype=torch.int64, device=target_tok.device)
        commit = torch.empty((bs,), dtype=torch.int32, device=target_tok.device)
        out = (wide[0], commit, torch.empty_like(commit, dtype=torch.int64), wide[1])
    path, commit, bonus, tokens = out
    if bs == 0:
        return path, commit, bonus, tokens
    tp = np2(width)
    _walk_kernel[(bs,)](
        target_tok,
        tables.tok,
        tables.par,
        path,
        commit,
        bonus,
        tokens,
        commit if chain_lens is None else chain_lens,
        commit if prefix_lens is None else prefix_lens,
        commit if new_lens is None else new_lens,
        tables.count,
        tables.truncated,
        commit if counters is None else counters,
        width,
        BLOCK=block,
        TP=tp,
        HAS_LENGTHS=new_lens is not None and prefix_lens is not None,
        HAS_CHAIN=chain_lens is not None,
        COUNT=counters is not None,
        num_warps=_warps(tp),
    )
    return path, commit, bonus, tokens


def _warps(tp: int) -> int:
    return 1 if tp <= 256 else 4


def variants() -> Iterator[Variant]:
    signature = {
        "target_ptr": "*i64", "tok_ptr": "*i64", "par_ptr": "*i32", "path_ptr": "*i64", "commit_ptr": "*i32",
        "bonus_ptr": "*i64", "out_ptr": "*i64", "chain_ptr": "*i32", "prefix_ptr": "*i64",
        "new_len_ptr": "*i64", "count_ptr": "*i32", "truncated_ptr": "*i32", "counter_ptr": "*i64", "T": "i32",
    }  # fmt: skip
    for tp in (16, 128, 256, 2048):
        constexprs = {"BLOCK": 16, "TP": tp, "HAS_LENGTHS": True, "HAS_CHAIN": True, "COUNT": True}
        yield Variant("walk", _walk_kernel, signature, constexprs, num_warps=_warps(tp), label=f"TP{tp}")
