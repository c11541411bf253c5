"""Move the accepted rows of a KV pool to the places a chain would have used, safe where they overlap.

A program owns a range of columns and one buffer; it reads all its source rows before it writes any, so no
row is overwritten before it was read, in whatever order the programs run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from .common import Variant, np2, require, require_runnable

WORDS = 128


@triton.jit
def _compact_kv_kernel(
    pointers_ptr, loc_ptr, path_ptr, commit_ptr, T, BLOCK, words, head_words, stride_page, stride_token, stride_head,
    BP: tl.constexpr, BW: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    buffer = tl.load(pointers_ptr + tl.program_id(2)).to(tl.pointer_type(tl.int32))
    commit = tl.load(commit_ptr + b)
    depth = tl.arange(0, BP)
    accepted = depth < commit
    row = tl.load(path_ptr + b * BLOCK + depth, mask=accepted, other=0)
    moves = accepted & (row != depth)
    if tl.max(moves.to(tl.int32), 0) == 1:
        word = tl.program_id(0) * BW + tl.arange(0, BW)
        column = (word // head_words) * stride_head + word % head_words
        source = tl.load(loc_ptr + b * T + row, mask=moves, other=0).to(tl.int64)
        target = tl.load(loc_ptr + b * T + depth, mask=moves, other=0).to(tl.int64)
        source = (source // PAGE) * stride_page + (source % PAGE) * stride_token
        target = (target // PAGE) * stride_page + (target % PAGE) * stride_token
        mask = moves[:, None] & (word < words)[None, :]
        content = tl.load(buffer + source[:, None] + column[None, :], mask=mask, other=0)
        tl.debug_barrier()
        tl.store(buffer + target[:, None] + column[None, :], content, mask=mask)


class KvMover:
    """Device addresses of KV buffers of one shape, gathered once; ``move`` is one launch without a host sync.

    Token layout: buffers [slots, heads, dim] (or [slots, ...] contiguous rows).  Paged head-first layout: buffers
    [pages, heads, page, dim], given by ``page_size`` > 1.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], page_size: int = 1) -> None:
        first = buffers[0]
        op = "compact_kv"
        require(
            all(x.shape == first.shape and x.stride() == first.stride() and x.dtype == first.dtype for x in buffers),
            op, "buffers of one mover must have one shape, layout and type.",
        )  # fmt: skip
        size = first.element_size()
        self.buffers = list(buffers)
        self.page_size = page_size
        if page_size == 1:
            row = first[0].numel()
            require(first[0].is_contiguous(), op, "a slot's row must be contiguous.")
            self.head_bytes, self.heads = row * size, 1
            strides = (first.stride(0), 0, 0)
        else:
            require(
                first.dim() == 4 and first.shape[2] == page_size, op, "paged buffers must be [pages, heads, page, dim]."
            )
            require(first.stride(3) == 1, op, "the last dimension must be contiguous.")
            self.head_bytes, self.heads = first.shape[3] * size, first.shape[1]
            strides = (first.stride(0), first.stride(2), first.stride(1))
        require(self.head_bytes % 4 == 0, op, f"rows of {self.head_bytes} bytes are not a multiple of 4.")
        require(all(s * size % 4 == 0 for s in strides), op, "strides must be multiples of 4 bytes.")
        self.strides = tuple(s * size // 4 for s in strides)
        self.pointers = torch.tensor([x.data_ptr() for x in buffers], dtype=torch.int64, device=first.device)

    def move(self, loc: torch.Tensor, path: torch.Tensor, commit_lens: torch.Tensor) -> None:
        """loc [bs, T] slot of each row; path [bs, block] int64 and commit_lens [bs] int32 of ``walk``."""
        require_runnable(loc, "compact_kv")
        bs, width = loc.shape
        if bs == 0:
            return
        head_words = self.head_bytes // 4
        words = head_words * self.heads
        _compact_kv_kernel[(triton.cdiv(words, WORDS), bs, len(self.buffers))](
            self.pointers, loc, path, commit_lens, width, path.shape[1], words, head_words, *self.strides,
            BP=np2(path.shape[1]), BW=WORDS, PAGE=self.page_size, num_warps=4,
        )  # fmt: skip


def compact_kv(
    buffers: Sequence[torch.Tensor], loc: torch.Tensor, path: torch.Tensor, commit_lens: torch.Tensor
) -> None:
    """The twin of ``reference.compact_kv`` (which also counts the moves); buffers may differ in shape."""
    groups: dict[tuple[object, ...], list[torch.Tensor]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.shape, buffer.stride(), buffer.dtype), []).append(buffer)
    for group in groups.values():
        KvMover(group).move(loc, path, commit_lens)


def variants() -> Iterator[Variant]:
    signature = {
        "pointers_ptr": "*i64", "loc_ptr": "*i64", "path_ptr": "*i64", "commit_ptr": "*i32", "T": "i32", "BLOCK": "i32",
        "words": "i32", "head_words": "i32", "stride_page": "i32", "stride_token": "i32", "stride_head": "i32",
    }  # fmt: skip
    for page in (1, 16):
        constexprs = {"BP": 16, "BW": WORDS, "PAGE": page}
        yield Variant("compact_kv", _compact_kv_kernel, signature, constexprs, label=f"page {page}")
