"""Top-K log-probabilities of each logit row: block-wise selection, then one merge per row.

Tensor parallel: every rank selects from its own vocabulary shard, the ranks gather the K values, ids and the
partial log-sum-exp of each, and the same merge kernel runs on the gathered candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common import Variant, np2, require, require_runnable

GROUPS, GROUP = 256, 16
BLOCK = GROUPS * GROUP
MAX_K = 64
_DTYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


@triton.jit
def _ordered(score):
    """float32 -> int32 with the same order (one warp-wide integer reduction then finds the maximum)."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _select_kernel(
    logits_ptr, value_ptr, id_ptr, lse_ptr, stride, V, first_id, blocks,
    K: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One block of one row: its K best (value, id) and its log-sum-exp.

    Only the best element of each group competes; the winner's group is read again for its next one.
    """
    lowest = -2147483648
    none = 2147483647
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    start = block * GROUPS * GROUP
    group = tl.arange(0, GROUPS)
    lane = tl.arange(0, GROUP)
    column = start + group[:, None] * GROUP + lane[None, :]
    source = logits_ptr + row * stride
    x = tl.load(source + column, mask=column < V, other=float("-inf")).to(tl.float32)
    top = tl.max(tl.max(x, 1), 0)
    shift = tl.where(top > float("-inf"), top, 0.0)
    total = tl.sum(tl.sum(tl.exp(x - shift), 1), 0)
    part = row * blocks + block
    tl.store(lse_ptr + part, tl.log(total) + shift)
    keys = tl.where(column < V, _ordered(tl.where(x == x, x, float("-inf")) + 0.0), lowest)
    order = tl.max(keys, 1)
    index = tl.min(tl.where((keys == order[:, None]) & (column < V), column, none), 1)
    for i in range(K):
        best = tl.max(order, 0)
        chosen = tl.min(tl.where(order == best, index, none), 0)
        found = best > lowest
        tl.store(value_ptr + part * K + i, tl.where(found, _unordered(best), float("-inf")))
        tl.store(id_ptr + part * K + i, tl.where(found, chosen, 0) + first_id)
        at = (tl.where(found, chosen, start) - start) // GROUP
        again = start + at * GROUP + lane
        y = tl.load(source + again, mask=again < V, other=float("-inf")).to(tl.float32)
        key = _ordered(tl.where(y == y, y, float("-inf")) + 0.0)
        left = (again < V) & ((key < best) | ((key == best) & (again > chosen)))
        key = tl.where(left, key, lowest)
        next_best = tl.max(key, 0)
        next_index = tl.min(tl.where(left & (key == next_best), again, none), 0)
        order = tl.where(group == at, next_best, order)
        index = tl.where(group == at, next_index, index)


@triton.jit
def _merge_kernel(
    value_ptr, id_ptr, lse_ptr, logp_ptr, out_id_ptr, lse_out_ptr, parts, value_stride, part_stride, lse_stride,
    K: tl.constexpr, PP: tl.constexpr, HEADS: tl.constexpr, SHARD: tl.constexpr,
):  # fmt: skip
    """One row: K best of ``parts`` sorted lists.  Only the heads of the lists compete in each round.

    List p of row r starts at r * value_stride + p * part_stride (its log-sum-exp at r * lse_stride + p * HEADS).
    """
    lowest = -2147483648
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PP)
    inside = part < parts
    lse = tl.load(lse_ptr + row * lse_stride + part * HEADS, mask=inside, other=float("-inf"))
    top = tl.max(lse, 0)
    shift = tl.where(top > float("-inf"), top, 0.0)
    whole = tl.log(tl.sum(tl.exp(lse - shift), 0)) + shift
    # A NaN or infinite sum leaves the row without candidates.
    usable = tl.where((whole > float("-inf")) & (whole < float("inf")), 1, 0)
    start = row * value_stride + part.to(tl.int64) * part_stride
    taken = tl.zeros((PP,), tl.int32)
    head = tl.load(value_ptr + start, mask=inside, other=float("-inf"))
    head_id = tl.load(id_ptr + start, mask=inside, other=2147483647)
    order = tl.where(inside, _ordered(head + 0.0), lowest)
    for i in range(K):
        best = tl.max(order, 0)
        chosen = tl.min(tl.where(order == best, head_id, 2147483647), 0)
        value = tl.where(best > lowest, _unordered(best), float("-inf"))
        if SHARD:
            tl.store(logp_ptr + row * K + i, value)
        else:
            tl.store(logp_ptr + row * K + i, tl.where(usable == 1, value - whole, float("-inf")))
        tl.store(out_id_ptr + row * K + i, chosen.to(tl.int64))
        mine = (order == best) & (head_id == chosen)
        taken += tl.where(mine, 1, 0)
        more = mine & (taken < K)
        head = tl.load(value_ptr + start + taken, mask=more, other=float("-inf"))
        head_id = tl.where(mine, tl.load(id_ptr + start + taken, mask=more, other=2147483647), head_id)
        order = tl.where(mine, tl.where(more, _ordered(head + 0.0), lowest), order)
    if SHARD:
        tl.store(lse_out_ptr + row, whole)


@dataclass
class TopKScratch:
    """Static buffers of ``topk_lse`` for rows x blocks candidates; reused by every call of at most that size."""

    value: torch.Tensor
    index: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def empty(cls, rows: int, vocab: int, k: int, device: torch.device | str) -> TopKScratch:
        blocks = triton.cdiv(vocab, BLOCK)
        return cls(
            value=torch.empty((rows * blocks * k,), dtype=torch.float32, device=device),
            index=torch.empty((rows * blocks * k,), dtype=torch.int32, device=device),
            lse=torch.empty((rows * blocks,), dtype=torch.float32, device=device),
        )


def topk_lse(
    logits: torch.Tensor,
    k: int,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    scratch: TopKScratch | None = None,
    first_id: int = 0,
    lse_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The twin of ``reference.topk_lse``: logits [N, V] -> (logp [N, k] float32, ids [N, k] int64).

    For one vocabulary shard: ``first_id`` is added to every id, and with ``lse_out`` [N] the row's log-sum-exp
    goes there and the raw logits are returned instead of log-probabilities; ``merge_shards`` combines them.
    """
    require_runnable(logits, "topk_lse")
    rows, vocab = logits.shape
    require(1 <= k <= min(MAX_K, vocab), "topk_lse", f"k must be 1..{min(MAX_K, vocab)}, got {k}.")
    require(logits.stride(1) == 1, "topk_lse", "the vocabulary must be contiguous.")
    require(logits.dtype in _DTYPES, "topk_lse", f"logits must be float32, bfloat16 or float16, not {logits.dtype}.")
    if out is None:
        out = (
            torch.empty((rows, k), dtype=torch.float32, device=logits.device),
            torch.empty((rows, k), dtype=torch.int64, device=logits.device),
        )
    if scratch is None:
        scratch = TopKScratch.empty(rows, vocab, k, logits.device)
    if rows == 0:
        return out
    blocks = triton.cdiv(vocab, BLOCK)
    _select_kernel[(blocks, rows)](
        logits, scratch.value, scratch.index, scratch.lse, logits.stride(0), vocab, first_id, blocks,
        K=k, GROUPS=GROUPS, GROUP=GROUP, num_warps=1,
    )  # fmt: skip
    _merge_kernel[(rows,)](
        scratch.value, scratch.index, scratch.lse, out[0], out[1], scratch.lse if lse_out is None else lse_out,
        blocks, blocks * k, k, blocks,
        K=k, PP=np2(blocks), HEADS=1, SHARD=lse_out is not None, num_warps=_merge_warps(np2(blocks)),
    )  # fmt: skip
    return out


def merge_shards(
    values: torch.Tensor, ids: torch.Tensor, lse: torch.Tensor, *, out: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """values [shards, N, K] float32 (raw logits, descending), ids [shards, N, K] int32, lse [shards, N] -> (logp, ids)."""
    require_runnable(values, "topk_lse")
    shards, rows, k = values.shape
    if out is None:
        out = (
            torch.empty((rows, k), dtype=torch.float32, device=values.device),
            torch.empty((rows, k), dtype=torch.int64, device=values.device),
        )
    if rows:
        _merge_kernel[(rows,)](
            values, ids, lse, out[0], out[1], lse, shards, k, rows * k, 1,
            K=k, PP=np2(shards), HEADS=rows, SHARD=False, num_warps=_merge_warps(np2(shards)),
        )  # fmt: skip
    return out


def _merge_warps(parts: int) -> int:
    return 1 if parts <= 512 else 4


def variants() -> Iterator[Variant]:
    for dtype in _DTYPES.values():
        for k in (8, 32):
            yield Variant(
                "topk_lse", _select_kernel,
                {"logits_ptr": dtype, "value_ptr": "*fp32", "id_ptr": "*i32", "lse_ptr": "*fp32", "stride": "i32",
                 "V": "i32", "first_id": "i32", "blocks": "i32"},
                {"K": k, "GROUPS": GROUPS, "GROUP": GROUP}, num_warps=1, label=f"select {dtype[1:]} K{k}",
            )  # fmt: skip
    for parts in (2, 64, 1024):
        yield Variant(
            "topk_lse", _merge_kernel,
            {"value_ptr": "*fp32", "id_ptr": "*i32", "lse_ptr": "*fp32", "logp_ptr": "*fp32", "out_id_ptr": "*i64",
             "lse_out_ptr": "*fp32", "parts": "i32", "value_stride": "i32", "part_stride": "i32", "lse_stride": "i32"},
            {"K": 32, "PP": parts, "HEADS": 1, "SHARD": True}, num_warps=_merge_warps(parts),
            label=f"merge PP{parts}",
        )  # fmt: skip
