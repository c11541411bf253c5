"""Advance the convolution states of all layers along the accepted paths, in one launch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .common import Variant, require, require_runnable

CHANNELS = 256


@triton.jit
def _conv_commit_kernel(
    x_ptr, path_ptr, commit_ptr, state_ptr, slot_ptr, track_slot_ptr, track_step_ptr,
    T, C, BLOCK, stride_x_layer, stride_x, stride_layer, stride_slot, stride_channel, stride_tap,
    BC: tl.constexpr, TRACK: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    m = channel < C
    slot = tl.load(slot_ptr + b).to(tl.int64)
    if slot < 0:
        return
    base = state_ptr + layer * stride_layer + channel * stride_channel
    here = base + slot * stride_slot
    oldest = tl.load(here, mask=m)
    middle = tl.load(here + stride_tap, mask=m)
    newest = tl.load(here + 2 * stride_tap, mask=m)
    track_step = -1
    track_slot = slot
    if TRACK:
        track_step = tl.load(track_step_ptr + b).to(tl.int32)
        track_slot = tl.load(track_slot_ptr + b).to(tl.int64)
    for step in range(tl.load(commit_ptr + b)):
        row = tl.load(path_ptr + b * BLOCK + step)
        oldest = middle
        middle = newest
        newest = tl.load(x_ptr + layer * stride_x_layer + (b * T + row) * stride_x + channel, mask=m).to(newest.dtype)
        if TRACK:
            if (step == track_step) & (track_slot >= 0):
                there = base + track_slot * stride_slot
                tl.store(there, oldest, mask=m)
                tl.store(there + stride_tap, middle, mask=m)
                tl.store(there + 2 * stride_tap, newest, mask=m)
    tl.store(here, oldest, mask=m)
    tl.store(here + stride_tap, middle, mask=m)
    tl.store(here + 2 * stride_tap, newest, mask=m)


def conv_commit(
    x: torch.Tensor,
    path: torch.Tensor,
    commit_lens: torch.Tensor,
    conv_state: torch.Tensor,
    slots: torch.Tensor,
    track_slots: torch.Tensor | None = None,
    track_steps: torch.Tensor | None = None,
) -> None:
    """The twin of ``reference.conv_commit``, in place; one layer, or all at once with a leading layer dimension.

    x [bs, T, C] or [layers, rows, T, C] (rows >= bs); conv_state [n_slots, C, 3] or [layers, n_slots, C, 3];
    path [bs, block] int64, commit_lens [bs] int32, slots [bs] (negative: skipped).
    """
    op = "conv_commit"
    require_runnable(x, op)
    if x.dim() == 3:
        x, conv_state = x[None], conv_state[None]
    layers, _, width, channels = x.shape
    require(conv_state.shape[3] == 3, op, f"the state must hold 3 inputs, got {conv_state.shape[3]}.")
    require(x.stride(3) == 1 and x.stride(1) == width * x.stride(2), op, "rows of x must be evenly spaced.")
    require(conv_state.shape[0] == layers, op, f"x has {layers} layers, the state {conv_state.shape[0]}.")
    bs = path.shape[0]
    if bs == 0:
        return
    track = track_slots is not None and track_steps is not None
    _conv_commit_kernel[(triton.cdiv(channels, CHANNELS), layers, bs)](
        x, path, commit_lens, conv_state, slots, slots if track_slots is None else track_slots,
        slots if track_steps is None else track_steps,
        width, channels, path.shape[1], x.stride(0), x.stride(2), conv_state.stride(0), conv_state.stride(1),
        conv_state.stride(2), conv_state.stride(3), BC=CHANNELS, TRACK=track, num_warps=4,
    )  # fmt: skip


def variants() -> Iterator[Variant]:
    for dtype in ("*bf16", "*fp32"):
        signature = {
            "x_ptr": dtype, "path_ptr": "*i64", "commit_ptr": "*i32", "state_ptr": dtype, "slot_ptr": "*i32",
            "track_slot_ptr": "*i64", "track_step_ptr": "*i64", "T": "i32", "C": "i32", "BLOCK": "i32",
            "stride_x_layer": "i64", "stride_x": "i32", "stride_layer": "i64", "stride_slot": "i32",
            "stride_channel": "i32", "stride_tap": "i32",
        }  # fmt: skip
        for track in (True, False):
            yield Variant(
                "conv_commit", _conv_commit_kernel, signature, {"BC": CHANNELS, "TRACK": track},
                label=f"{dtype[1:]} track={track}",
            )  # fmt: skip
