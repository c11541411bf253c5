"""The short causal convolution of a linear-attention layer, along tree paths, all rows in parallel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .common import Variant, require, require_runnable

ROWS, CHANNELS = 8, 256
WIDTH = 4


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _column(x, index: tl.constexpr):
    """x [N, 4] -> column ``index``, float32 [N]."""
    return tl.sum(tl.where(tl.arange(0, 4)[None, :] == index, x.to(tl.float32), 0.0), 1)


@triton.jit(do_not_specialize=["T"])
def _conv_tree_kernel(
    x_ptr, state_ptr, weight_ptr, bias_ptr, slot_ptr, anc_ptr, dep_ptr, y_ptr,
    record_ptr, a_ptr, b_ptr, a_record_ptr, b_record_ptr,
    T, C, HV, stride_x, stride_slot, stride_channel, stride_tap, stride_a, stride_b, levels, channel_blocks,
    ROWS: tl.constexpr, BC: tl.constexpr, HP: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
    RECORD: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    tiles = tl.cdiv(T, ROWS)
    request = (tl.program_id(1) // tiles).to(tl.int64)
    row = (tl.program_id(1) % tiles) * ROWS + tl.arange(0, ROWS)
    inside = row < T
    flat = request * T + row
    if RECORD:
        if block >= channel_blocks:  # one more program per row tile keeps the gate inputs
            head = tl.arange(0, HP)
            m = inside[:, None] & (head < HV)[None, :]
            a = tl.load(a_ptr + flat[:, None] * stride_a + head[None, :], mask=m, other=0.0)
            b = tl.load(b_ptr + flat[:, None] * stride_b + head[None, :], mask=m, other=0.0)
            tl.store(a_record_ptr + flat[:, None] * HV + head[None, :], a, mask=m)
            tl.store(b_record_ptr + flat[:, None] * HV + head[None, :], b, mask=m)
            return
    channel = block * BC + tl.arange(0, BC)
    known = channel < C
    m = inside[:, None] & known[None, :]
    slot = tl.load(slot_ptr + request).to(tl.int64)
    depth = tl.load(dep_ptr + flat, mask=inside, other=0)
    parent = tl.load(anc_ptr + flat * levels, mask=inside, other=-1)
    depth = tl.where((parent < 0) & (depth > 0), 0, depth)  # padding rows stand at the root's place
    # Weights and state are read in one go each, then taken apart: column by column every thread would read its few
    # channels once more for every warp.
    tap = tl.arange(0, 4)
    weights = tl.load(weight_ptr + channel[:, None] * 4 + tap[None, :], mask=known[:, None], other=0.0)
    columns = tl.load(
        state_ptr + tl.maximum(slot, 0) * stride_slot + channel[:, None] * stride_channel + tap[None, :] * stride_tap,
        mask=known[:, None] & (tap < 3)[None, :], other=0.0,
    )  # fmt: skip
    # Columns of the state, newest first: what the root's ancestors would have been.
    newest, middle, oldest = _column(columns, 2), _column(columns, 1), _column(columns, 0)

    own = tl.load(x_ptr + flat[:, None] * stride_x + channel[None, :], mask=m, other=0.0)
    acc = own.to(tl.float32) * _column(weights, 3)[None, :]
    for back in tl.static_range(3):
        in_tree = inside & (depth > back)
        up = tl.load(anc_ptr + flat * levels + back, mask=in_tree, other=-1)
        in_tree = in_tree & (up >= 0)
        source = request * T + tl.where(in_tree, up, 0)
        x = tl.load(
            x_ptr + source[:, None] * stride_x + channel[None, :], mask=in_tree[:, None] & known[None, :], other=0.0
        )
        above = (back - depth)[:, None]  # 0: the newest entry of the state
        old = tl.where(above <= 0, newest[None, :], tl.where(above == 1, middle[None, :], oldest[None, :]))
        acc += tl.where(in_tree[:, None], x.to(tl.float32), old) * _column(weights, 2 - back)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + channel, mask=known, other=0.0).to(tl.float32)[None, :]
    if SILU:
        acc = silu(acc)
    acc = tl.where(slot >= 0, acc, 0.0)
    at = flat[:, None] * C + channel[None, :]
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=m)
    if RECORD:
        tl.store(record_ptr + at, own, mask=m)


def conv_tree(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    slots: torch.Tensor,
    tables: TreeTables,
    activation: str | None = "silu",
    *,
    out: torch.Tensor | None = None,
    record: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    gate_inputs: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The twin of ``reference.conv_tree``: x [bs, T, C] -> [bs, T, C]; conv_state [n_slots, C, 3], weight [C, 4].

    With ``record`` (x [bs, T, C], a [bs, T, HV], b [bs, T, HV], contiguous) the raw inputs and
    ``gate_inputs`` (a, b) are kept for the commit in the same launch.
    """
    op = "conv_tree"
    require_runnable(x, op)
    bs, width, channels = x.shape
    require(weight.shape == (channels, WIDTH), op, f"weight must be [{channels}, {WIDTH}], got {tuple(weight.shape)}.")
    require(weight.is_contiguous(), op, "weight must be contiguous.")
    require(conv_state.shape[2] == WIDTH - 1, op, f"the state must hold {WIDTH - 1} inputs, got {conv_state.shape[2]}.")
    require(x.stride(2) == 1 and x.stride(0) == width * x.stride(1), op, "rows of x must be evenly spaced.")
    require(activation in ("silu", "swish", None), op, f"knows the activations silu and None, got {activation!r}.")
    if out is None:
        out = torch.empty((bs, width, channels), dtype=x.dtype, device=x.device)
    if bs == 0:
        return out
    kept_x, kept_a, kept_b = record or (x, x, x)
    a, b = gate_inputs or (x, x)
    heads = a.shape[-1] if record else 1
    blocks = triton.cdiv(channels, CHANNELS)
    _conv_tree_kernel[(blocks + (1 if record else 0), bs * triton.cdiv(width, ROWS))](
        x, conv_state, weight, x if bias is None else bias, slots, tables.anc, tables.dep, out,
        kept_x, a, b, kept_a, kept_b,
        width, channels, heads, x.stride(1), conv_state.stride(0), conv_state.stride(1), conv_state.stride(2),
        a.stride(-2), b.stride(-2), tables.max_depth, blocks,
        ROWS=ROWS, BC=CHANNELS, HP=triton.next_power_of_2(heads), BIAS=bias is not None,
        SILU=activation is not None, RECORD=record is not None, num_warps=4,
    )  # fmt: skip
    return out


def variants() -> Iterator[Variant]:
    for dtype in ("*bf16", "*fp32"):
        data = ("x_ptr", "state_ptr", "weight_ptr", "bias_ptr", "y_ptr", "record_ptr", "a_ptr", "b_ptr", "a_record_ptr",
                "b_record_ptr")  # fmt: skip
        order = ("x_ptr", "state_ptr", "weight_ptr", "bias_ptr", "slot_ptr", "anc_ptr", "dep_ptr", "y_ptr",
                 "record_ptr", "a_ptr", "b_ptr", "a_record_ptr", "b_record_ptr")  # fmt: skip
        signature = {name: dtype if name in data else "*i32" for name in order}
        for name in ("T", "C", "HV", "stride_x", "stride_slot", "stride_channel", "stride_tap", "stride_a", "stride_b",
                     "levels", "channel_blocks"):  # fmt: skip
            signature[name] = "i32"
        for record in (True, False):
            constexprs = {"ROWS": ROWS, "BC": CHANNELS, "HP": 64, "BIAS": True, "SILU": True, "RECORD": record}
            yield Variant("conv_tree", _conv_tree_kernel, signature, constexprs, label=f"{dtype[1:]} record={record}")
