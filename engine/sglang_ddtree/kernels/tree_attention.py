"""Attention of the verify pass: every row reads its request's committed prefix and its own ancestors.

Prefix and tree are split over programs, the tree rows are masked exactly from ancestor bits, and a second kernel merges
the parts by their log-sum-exp.  K and V are addressed by token
slot, so any page size and any request length run through one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common import (
    JUDGED_ON,
    MULTIPROCESSORS,
    SHARED_LIMIT,
    Variant,
    device_limit,
    interpreting,
    require,
    require_runnable,
)  # fmt: skip

LOG2E = 1.4426950408889634
MAX_SPLITS = 32


@dataclass(frozen=True)
class AttentionConfig:
    """Tile of one program: BM query rows (row x query head of one KV head), BN keys a step.

    ``resident``: how many programs a multiprocessor with 227 KiB of shared memory holds.
    """

    bm: int
    bn: int
    warps: int
    stages: int
    resident: int = 2

    @property
    def label(self) -> str:
        """Short and unambiguous, for tables and result files."""
        return f"{self.bm}x{self.bn} W{self.warps} S{self.stages}"


# In order of preference; the launcher takes the first that fits the device's shared memory at this head size.
CONFIGS = {
    64: (AttentionConfig(64, 64, 4, 2), AttentionConfig(64, 32, 4, 2)),
    128: (AttentionConfig(64, 64, 4, 2), AttentionConfig(64, 32, 4, 2)),
    256: (AttentionConfig(128, 64, 8, 3, resident=1), AttentionConfig(64, 32, 4, 2), AttentionConfig(32, 32, 4, 1)),
}
# For the tree alone, where another kernel has read the prefix; of every head size.
AFTER_PREFIX = AttentionConfig(64, 32, 4, 2)

# Verified like the others, picked by nothing: ``bench.candidates`` says where one should be.
CANDIDATES = {
    256: (
        AttentionConfig(64, 32, 4, 3), AttentionConfig(64, 32, 8, 3, resident=1), AttentionConfig(64, 64, 8, 3, resident=1),
        AttentionConfig(128, 32, 8, 3, resident=1),
    ),
}  # fmt: skip


def shared_bytes(head_dim: int, config: AttentionConfig) -> int:
    """Upper bound of a program's shared memory for 16-bit K and V (checked by the compile matrix).

    K and V have two buffers each from three stages down: the first stage fetches the slots only.
    """
    return 2 * head_dim * (config.bm + 2 * max(2, config.stages - 1) * config.bn) + 2048


@triton.jit
def _mma(x, y, EMULATE: tl.constexpr):
    """x @ y; the interpreter knows no bfloat16 products, so there both are widened first."""
    if EMULATE:
        product = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(x, y, input_precision="ieee")
    return product


@triton.jit
def _attend(
    q, acc, top, total, slot, visible, k_ptr, v_ptr, head, stride_k, stride_v, scale,
    D: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """One block of keys into the running softmax of (acc, top, total)."""
    dim = tl.arange(0, D)
    present = slot >= 0
    safe = tl.where(present, slot, 0).to(tl.int64)
    k = tl.load(k_ptr + safe[None, :] * stride_k + head * D + dim[:, None], mask=present[None, :], other=0.0)
    s = _mma(q, k, EMULATE) * scale
    s = tl.where(visible, s, float("-inf"))
    peak = tl.maximum(top, tl.max(s, 1))
    shift = tl.where(peak > float("-inf"), peak, 0.0)
    p = tl.exp2(s - shift[:, None])
    fade = tl.exp2(top - shift)
    total = total * fade + tl.sum(p, 1)
    v = tl.load(v_ptr + safe[:, None] * stride_v + head * D + dim[None, :], mask=present[:, None], other=0.0)
    acc = acc * fade[:, None] + _mma(p.to(v.dtype), v, EMULATE)
    return acc, peak, total


@triton.jit
def _parts(blocks, splits, programs, slots, MOST: tl.constexpr):
    """How many of ``splits`` parts take the shortest time: rounds of programs, each as long as its blocks and three more."""
    parts = tl.arange(0, MOST) + 1
    rounds = tl.cdiv(programs * parts, slots)
    time = tl.where(parts <= splits, rounds * (3 + tl.cdiv(blocks, parts)), 1 << 30)
    return tl.argmin(time, 0) + 1


@triton.jit(do_not_specialize=["T", "W", "splits", "slots"])
def _tree_attention_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, start_ptr, prefix_ptr, tree_slot_ptr, bits_ptr, out_ptr, part_ptr, lse_ptr,
    before_ptr, before_lse_ptr, T, W, heads, splits, slots, stride_q, stride_k, stride_v, stride_table, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr, STARTS: tl.constexpr,
    MOST: tl.constexpr, BEFORE: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    tiles = tl.cdiv(T * GROUP, BM)
    head = tl.program_id(1) // tiles
    tile = tl.program_id(1) % tiles
    b = tl.program_id(2).to(tl.int64)
    m = tile * BM + tl.arange(0, BM)
    row = m // GROUP
    query_head = head * GROUP + m % GROUP
    inside = row < T
    dim = tl.arange(0, D)
    n = tl.arange(0, BN)
    out_row = (b * T + row) * heads + query_head

    prefix = tl.load(prefix_ptr + b).to(tl.int32)
    if STARTS:
        table = table_ptr + tl.load(start_ptr + b).to(tl.int64)
    else:
        table = table_ptr + b * stride_table
    # Keys are the prefix and then the tree, whose rows after this tile's last are nobody's ancestors here.  The parts
    # that work share their blocks evenly; the others see no key.
    columns = tl.minimum(T, (tile * BM + BM - 1) // GROUP + 1)
    blocks = tl.cdiv(prefix, BN)
    if BEFORE:
        blocks = 0
    total_blocks = blocks + tl.cdiv(columns, BN)
    programs = tl.num_programs(1) * tl.num_programs(2)
    parts = _parts(blocks + tl.cdiv(T, BN), splits, programs, slots, MOST)
    share = tl.cdiv(total_blocks, parts)
    first = split * share
    last = tl.minimum(first + share, total_blocks)
    if first >= last:
        tl.store(lse_ptr + out_row * splits + split, tl.full((BM,), float("-inf"), tl.float32), mask=inside)
        return
    q = tl.load(
        q_ptr + (b * T + row)[:, None] * stride_q + (query_head * D)[:, None] + dim[None, :],
        mask=inside[:, None], other=0.0,
    )  # fmt: skip
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    if BEFORE:
        seen = inside & (prefix > 0)
        acc = tl.load(before_ptr + out_row[:, None] * D + dim[None, :], mask=seen[:, None], other=0.0).to(tl.float32)
        lse = tl.load(before_lse_ptr + query_head * (tl.num_programs(2) * T) + b * T + row, mask=seen, other=0.0)
        top = tl.where(seen, lse * 1.4426950408889634, float("-inf"))
        total = tl.where(seen, 1.0, 0.0)
    if not BEFORE:
        for at in range(tl.minimum(first, blocks) * BN, tl.minimum(last, blocks) * BN, BN):
            position = at + n
            there = position < prefix
            page = tl.load(table + position // PAGE, mask=there, other=-1).to(tl.int64)
            slot = tl.where(there, page * PAGE + position % PAGE, -1)
            acc, top, total = _attend(
                q, acc, top, total, slot, there[None, :], k_ptr, v_ptr, head, stride_k, stride_v, scale, D, EMULATE
            )
    for at in range((tl.maximum(first, blocks) - blocks) * BN, (tl.maximum(last, blocks) - blocks) * BN, BN):
        column = at + n
        there = column < columns
        slot = tl.load(tree_slot_ptr + b * T + column, mask=there, other=-1).to(tl.int64)
        word = tl.load(bits_ptr + (b * T + row) * W + at // 64, mask=inside, other=0)
        ancestor = ((word[:, None] >> (column % 64).to(tl.int64)[None, :]) & 1) == 1
        visible = there[None, :] & (ancestor | (row[:, None] == column[None, :]))
        acc, top, total = _attend(
            q, acc, top, total, slot, visible, k_ptr, v_ptr, head, stride_k, stride_v, scale, D, EMULATE
        )
    done = tl.where(total > 0, total, 1.0)
    result = acc / done[:, None]
    if share >= total_blocks:  # the only part that works: nothing to merge
        p_out = out_ptr + out_row[:, None] * D + dim[None, :]
        tl.store(p_out, result.to(out_ptr.dtype.element_ty), mask=inside[:, None])
        if splits > 1:
            tl.store(lse_ptr + out_row * splits, tl.full((BM,), float("inf"), tl.float32), mask=inside)
    else:
        # A row that saw no key in this part writes its weight only, which keeps the merge from reading the rest.
        at_part = out_row * splits + split
        p_part = part_ptr + at_part[:, None] * D + dim[None, :]
        tl.store(p_part, result, mask=(inside & (total > 0))[:, None])
        tl.store(lse_ptr + at_part, tl.where(total > 0, top + tl.log2(done), float("-inf")), mask=inside)


@triton.jit
def _merge_kernel(part_ptr, lse_ptr, out_ptr, D: tl.constexpr, SPLITS: tl.constexpr, SP: tl.constexpr):
    """One row and head: its parts by their weights.  An infinite weight says that the row is done already."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(lse_ptr + row * SPLITS) == float("inf"):
        return
    split = tl.arange(0, SP)
    dim = tl.arange(0, D)
    inside = split < SPLITS
    lse = tl.load(lse_ptr + row * SPLITS + split, mask=inside, other=float("-inf"))
    weight = tl.exp2(lse - tl.max(lse, 0))
    weight = weight / tl.sum(weight, 0)
    used = inside & (weight > 0)
    part = tl.load(part_ptr + (row * SPLITS + split)[:, None] * D + dim[None, :], mask=used[:, None], other=0.0)
    out = tl.sum(part * weight[:, None], 0)
    tl.store(out_ptr + row * D + dim, out.to(out_ptr.dtype.element_ty))


@dataclass
class AttentionScratch:
    """Parts and their log-sum-exp; one allocation serves every layer."""

    part: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def empty(cls, rows: int, heads: int, head_dim: int, splits: int, device: torch.device | str) -> AttentionScratch:
        return cls(
            part=torch.empty((rows * heads * splits * head_dim,), dtype=torch.float32, device=device),
            lse=torch.empty((rows * heads * splits,), dtype=torch.float32, device=device),
        )


def pick_config(head_dim: int, limit: int) -> AttentionConfig:
    """The first tile of this head size that fits ``limit`` bytes of shared memory."""
    require(head_dim in CONFIGS, "tree_attention", f"head size must be one of {sorted(CONFIGS)}, got {head_dim}.")
    for config in CONFIGS[head_dim]:
        if shared_bytes(head_dim, config) <= limit:
            return config
    return CONFIGS[head_dim][-1]


def pick_splits(bs: int, width: int, kv_heads: int, group: int, config: AttentionConfig) -> int:
    """Parts for a long prefix: as few as keep the multiprocessors evenly busy (a part more costs about 2 % to merge).

    A short prefix uses fewer of them, which the kernel finds out.
    """
    programs = bs * kv_heads * triton.cdiv(width * group, config.bm)
    slots = MULTIPROCESSORS * config.resident

    def cost(splits: int) -> float:
        return triton.cdiv(programs * splits, slots) / splits * (1 + 0.02 * splits)

    return min(range(1, MAX_SPLITS + 1), key=cost)


def tree_attention(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slot_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    tree_slots: torch.Tensor,
    bits: torch.Tensor,
    scale: float,
    *,
    starts: torch.Tensor | None = None,
    page_size: int = 1,
    splits: int | None = None,
    config: AttentionConfig | None = None,
    out: torch.Tensor | None = None,
    scratch: AttentionScratch | None = None,
    before: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """q [bs*T, HQ, D] -> [bs*T, HQ, D]; row i of request b sees the prefix, itself and its ancestors.

    k_buffer, v_buffer [slots, HK, D] (rows of tree nodes already written); prefix_lens [bs]; tree_slots [bs, T];
    bits [bs, T, W] of ``ancestor_bits``.  The slot of prefix position p is
    ``slot_table[b, p // page_size] * page_size + p % page_size``; with ``starts`` [bs] the table is flat and
    request b's entries begin at starts[b].  ``before``: what another kernel found over the prefix alone, as its output
    [bs*T, HQ, D] and the logarithms of its sums of exponentials [HQ, bs*T]; then only the tree is read here.
    """
    op = "tree_attention"
    require_runnable(q, op)
    rows, heads, dim = q.shape
    bs, width, words = bits.shape
    kv_heads = k_buffer.shape[1]
    require(rows == bs * width, op, f"q has {rows} rows, bits describe {bs} x {width}.")
    require(heads % kv_heads == 0, op, f"{heads} query heads do not divide into {kv_heads} KV heads.")
    require(k_buffer.stride(2) == 1 and v_buffer.stride(2) == 1 and q.stride(2) == 1, op, "rows must be contiguous.")
    require(
        k_buffer.stride(1) == dim and v_buffer.stride(1) == dim and q.stride(1) == dim,
        op, "heads of a row must be adjacent.",
    )  # fmt: skip
    group = heads // kv_heads
    config = config or pick_config(dim, device_limit(q))
    splits = 1 if before else splits or pick_splits(bs, width, kv_heads, group, config)
    if out is None:
        out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    if splits == 1:
        part = lse = torch.empty((1,), dtype=torch.float32, device=q.device)
    else:
        scratch = scratch or AttentionScratch.empty(rows, heads, dim, splits, q.device)
        part, lse = scratch.part, scratch.lse
    if before:
        require(before[0].is_contiguous() and before[1].is_contiguous(), op, "the prefix's part must be contiguous.")
        require(before[1].shape == (heads, rows), op, f"the prefix's sums must be [{heads}, {rows}].")
    before_out, before_lse = before or (out, lse)
    grid = (splits, kv_heads * triton.cdiv(width * group, config.bm), bs)
    _tree_attention_kernel[grid](
        q, k_buffer, v_buffer, slot_table, prefix_lens if starts is None else starts, prefix_lens, tree_slots, bits,
        out, part, lse, before_out, before_lse, width, words, heads, splits, MULTIPROCESSORS * config.resident,
        q.stride(0), k_buffer.stride(0), v_buffer.stride(0),
        slot_table.stride(0) if slot_table.dim() == 2 else 0, scale * LOG2E,
        GROUP=group, D=dim, BM=config.bm, BN=config.bn, PAGE=page_size, STARTS=starts is not None,
        MOST=MAX_SPLITS, BEFORE=before is not None, EMULATE=interpreting(), num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(rows * heads,)](
            part, lse, out, D=dim, SPLITS=splits, SP=triton.next_power_of_2(splits), num_warps=2
        )
    return out


def variants() -> Iterator[Variant]:
    signature = {
        "q_ptr": "*bf16", "k_ptr": "*bf16", "v_ptr": "*bf16", "table_ptr": "*i32", "start_ptr": "*i32",
        "prefix_ptr": "*i64", "tree_slot_ptr": "*i64", "bits_ptr": "*i64", "out_ptr": "*bf16", "part_ptr": "*fp32", "lse_ptr": "*fp32",
        "before_ptr": "*bf16", "before_lse_ptr": "*fp32", "T": "i32", "W": "i32", "heads": "i32", "splits": "i32", "slots": "i32", "stride_q": "i32", "stride_k": "i32", "stride_v": "i32",
        "stride_table": "i32", "scale": "fp32",
    }  # fmt: skip
    for dim, configs in CONFIGS.items():
        for config in configs + CANDIDATES.get(dim, ()):
            archs = tuple(SHARED_LIMIT) if config in configs else JUDGED_ON
            fits = tuple(arch for arch in archs if shared_bytes(dim, config) <= SHARED_LIMIT[arch])
            for before in (False, True):
                constexprs = {
                    "GROUP": 6, "D": dim, "BM": config.bm, "BN": config.bn, "PAGE": 1, "STARTS": False,
                    "MOST": MAX_SPLITS, "BEFORE": before, "EMULATE": False,
                }  # fmt: skip
                label = f"D{dim} {config.label}{' before' * before}"
                # FlashAttention-3, whose work this form continues, is there for 9.0 only.
                built_for = tuple(arch for arch in fits if arch == 90) if before else fits
                yield Variant(
                    "tree_attention", _tree_attention_kernel, signature, constexprs, num_warps=config.warps,
                    num_stages=config.stages, label=label, architectures=built_for,
                )  # fmt: skip
        merge = {"part_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": "*bf16"}
        for splits in (16,):
            constexprs = {"D": dim, "SPLITS": splits, "SP": triton.next_power_of_2(splits)}
            yield Variant(
                "tree_attention", _merge_kernel, merge, constexprs, num_warps=2, label=f"merge D{dim} S{splits}"
            )
