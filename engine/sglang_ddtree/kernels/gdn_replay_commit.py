"""Advance the recurrent states of all layers along the accepted paths, in one launch.

The loop below is the recurrence itself, in the order of the engine's own recurrent kernel, so that the committed
state has the bits a chain would have left.  That kernel spreads the key channels over all lanes of a warp, four to
a lane, and sums them lane against lane; here eight lanes hold them and ``_over_keys`` adds in the same order, which
takes a sixth of the exchanges (for 128 key channels; other sizes are summed as they come).  How many value channels a program owns does not touch the bits.
Two record forms: post-convolution k and v, or (leaner) the raw inputs, whose convolution is repeated for the path.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common import Variant, np2, require, require_runnable
from .conv_tree import silu

# Of the tiles that leave the same bits, the fastest on an H200: 32 value channels, one warp.
BV = 32


@triton.jit
def _lane_tree(x, BV: tl.constexpr):
    """Sums [8, BV, 4] over what lane 8 * part + i of 32 holds, as a warp does: lanes 16, 8, 4, 2 and 1 apart."""
    x = tl.sum(tl.reshape(x, [8, BV, 2, 2]), 2)
    x = tl.sum(x, 2)
    x = tl.sum(tl.reshape(x, [2, 4, BV]), 0)
    x = tl.sum(tl.reshape(x, [2, 2, BV]), 0)
    return tl.sum(x, 0)


@triton.jit
def _over_keys(x, LANES: tl.constexpr, PARTS: tl.constexpr, BV: tl.constexpr):
    """Sums [LANES, BV, PARTS] over the keys; with 4 parts in the order of a [128, BV] tile of one warp.

    There a lane first adds its own four neighbouring channels.
    """
    if PARTS == 4:
        total = _lane_tree(tl.sum(tl.reshape(x, [8, 4, BV, 4]), 1), BV)
    else:
        total = tl.sum(tl.reshape(x, [LANES, BV]), 0)
    return total


@triton.jit
def _square_sum(k, PARTS: tl.constexpr):
    """Sum of the squares of k [BK], in the same order; a lane's four channels are written out, so that they contract
    to fused multiply-adds whatever the layout."""
    if PARTS == 4:
        even, odd = tl.split(tl.reshape(k, [32, 2, 2]))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        own = x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3
        own = tl.sum(tl.reshape(own, [2, 16]), 0)
        own = tl.sum(tl.reshape(own, [2, 8]), 0)
        own = tl.sum(tl.reshape(own, [2, 4]), 0)
        own = tl.sum(tl.reshape(own, [2, 2]), 0)
        total = tl.sum(own, 0)
    else:
        total = tl.sum(k * k, 0)
    return total


@triton.jit
def _convolve(own, back1, back2, back3, w3, w2, w1, w0, bias, BIAS: tl.constexpr, SILU: tl.constexpr):
    """One convolution output in float32, summed in conv_tree's order and rounded as conv_tree stores it."""
    acc = own.to(tl.float32) * w3
    acc += back1.to(tl.float32) * w2
    acc += back2.to(tl.float32) * w1
    acc += back3.to(tl.float32) * w0
    if BIAS:
        acc += bias
    if SILU:
        acc = silu(acc)
    return acc.to(own.dtype).to(tl.float32)


@triton.jit
def _taps(weight_ptr, channel, mask):
    """The four weights of some channels, newest first, float32."""
    w3 = tl.load(weight_ptr + channel * 4 + 3, mask=mask, other=0.0).to(tl.float32)
    w2 = tl.load(weight_ptr + channel * 4 + 2, mask=mask, other=0.0).to(tl.float32)
    w1 = tl.load(weight_ptr + channel * 4 + 1, mask=mask, other=0.0).to(tl.float32)
    w0 = tl.load(weight_ptr + channel * 4, mask=mask, other=0.0).to(tl.float32)
    return w3, w2, w1, w0


@triton.jit
def _gdn_replay_commit_kernel(
    k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, path_ptr, commit_ptr, state_ptr, slot_ptr, track_slot_ptr,
    track_step_ptr, conv_ptr, weight_ptr, bias_ptr,
    T, BLOCK, C, stride_layer, stride_k, stride_v, stride_gate_layer, stride_gate, stride_state_layer, stride_state_slot,
    stride_conv_layer, stride_conv_slot, stride_conv_channel, stride_conv_tap,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    LANES: tl.constexpr, PARTS: tl.constexpr, RAW: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, TRACK: tl.constexpr,
):  # fmt: skip
    layer = (tl.program_id(1) // HV).to(tl.int64)
    hv = tl.program_id(1) % HV
    h = hv // (HV // H)
    request = tl.program_id(2).to(tl.int64)
    slot = tl.load(slot_ptr + request).to(tl.int64)
    if slot < 0:
        return
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    mask_k = o_k < K
    mask_v = o_v < V
    part_k = tl.arange(0, PARTS)[None, None, :] * LANES + tl.arange(0, LANES)[:, None, None]
    mask_h = (part_k < K) & mask_v[None, :, None]
    p_state = state_ptr + layer * stride_state_layer + hv * K * V + o_v[None, :, None] * K + part_k
    b_h = tl.zeros([LANES, BV, PARTS], dtype=tl.float32)
    b_h += tl.load(p_state + slot * stride_state_slot, mask=mask_h, other=0).to(tl.float32)
    at_layer = layer * stride_layer  # k and v have one layer stride, and each its own row stride
    gate_layer = layer * stride_gate_layer
    if RAW:
        k_channel = H * K + h * K + o_k
        v_channel = 2 * H * K + hv * V + o_v
        p_conv = conv_ptr + layer * stride_conv_layer + slot * stride_conv_slot
        p_weight = weight_ptr + layer * C * 4
        p_bias = bias_ptr + layer * C
        k3 = tl.load(p_conv + k_channel * stride_conv_channel, mask=mask_k, other=0)
        k2 = tl.load(p_conv + k_channel * stride_conv_channel + stride_conv_tap, mask=mask_k, other=0)
        k1 = tl.load(p_conv + k_channel * stride_conv_channel + 2 * stride_conv_tap, mask=mask_k, other=0)
        v3 = tl.load(p_conv + v_channel * stride_conv_channel, mask=mask_v, other=0)
        v2 = tl.load(p_conv + v_channel * stride_conv_channel + stride_conv_tap, mask=mask_v, other=0)
        v1 = tl.load(p_conv + v_channel * stride_conv_channel + 2 * stride_conv_tap, mask=mask_v, other=0)
        kw3, kw2, kw1, kw0 = _taps(p_weight, k_channel, mask_k)
        vw3, vw2, vw1, vw0 = _taps(p_weight, v_channel, mask_v)
        k_bias = tl.load(p_bias + k_channel, mask=mask_k & BIAS, other=0.0).to(tl.float32)
        v_bias = tl.load(p_bias + v_channel, mask=mask_v & BIAS, other=0.0).to(tl.float32)
    else:
        k_channel = h * K + o_k
        v_channel = hv * V + o_v
    dt = tl.load(dt_ptr + layer * HV + hv).to(tl.float32)
    a_log = tl.load(a_log_ptr + layer * HV + hv).to(tl.float32)
    track_step = -1
    track_slot = slot
    if TRACK:
        track_step = tl.load(track_step_ptr + request).to(tl.int32)
        track_slot = tl.load(track_slot_ptr + request).to(tl.int64)

    steps = tl.load(commit_ptr + request)
    p_k = k_ptr + at_layer + k_channel
    p_v = v_ptr + at_layer + v_channel
    path = path_ptr + request * BLOCK
    # The inputs of a step are fetched while the one before it computes.
    row = request * T + tl.load(path)
    k0 = tl.load(p_k + row * stride_k, mask=mask_k, other=0)
    v0 = tl.load(p_v + row * stride_v, mask=mask_v, other=0)
    a0 = tl.load(a_ptr + gate_layer + row * stride_gate + hv)
    b0 = tl.load(b_ptr + gate_layer + row * stride_gate + hv)
    for step in range(steps):
        if RAW:
            b_k = _convolve(k0, k1, k2, k3, kw3, kw2, kw1, kw0, k_bias, BIAS, SILU)
            b_v = _convolve(v0, v1, v2, v3, vw3, vw2, vw1, vw0, v_bias, BIAS, SILU)
            k3 = k2
            k2 = k1
            k1 = k0.to(k1.dtype)
            v3 = v2
            v2 = v1
            v1 = v0.to(v1.dtype)
        else:
            b_k = k0.to(tl.float32)
            b_v = v0.to(tl.float32)
        b_b = b0.to(tl.float32)
        x = a0.to(tl.float32) + dt
        row = request * T + tl.load(path + tl.minimum(step + 1, steps - 1))
        k0 = tl.load(p_k + row * stride_k, mask=mask_k, other=0)
        v0 = tl.load(p_v + row * stride_v, mask=mask_v, other=0)
        a0 = tl.load(a_ptr + gate_layer + row * stride_gate + hv)
        b0 = tl.load(b_ptr + gate_layer + row * stride_gate + hv)
        softplus = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
        b_g = -tl.exp(a_log) * softplus
        b_beta = 1.0 / (1.0 + tl.exp(-b_b))
        b_k = b_k / (tl.sqrt(_square_sum(b_k, PARTS) + 1e-6))
        b_k = tl.trans(tl.reshape(b_k, [PARTS, LANES]))[:, None, :]
        b_h *= tl.exp(b_g)
        b_v -= _over_keys(b_h * b_k, LANES, PARTS, BV)
        b_v *= b_beta
        b_h += b_k * b_v[None, :, None]
        if TRACK:
            if (step == track_step) & (track_slot >= 0):
                tl.store(p_state + track_slot * stride_state_slot, b_h.to(state_ptr.dtype.element_ty), mask=mask_h)
    tl.store(p_state + slot * stride_state_slot, b_h.to(state_ptr.dtype.element_ty), mask=mask_h)


@dataclass
class RawRecord:
    """What the lean form needs beside the raw inputs: the convolution as it was before this step's commit.

    conv_state [layers, n_slots, C, 3], weight [layers, C, 4] contiguous, bias [layers, C] or None; the C channels
    are q (H*K), k (H*K), v (HV*V).
    """

    conv_state: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    key_heads: int
    activation: str | None = "silu"


def key_parts(block: int) -> tuple[int, int]:
    """How ``block`` key channels (a power of two) lie in the tile: (lanes, parts)."""
    return (32, 4) if block == 128 else (block, 1)


def gdn_replay_commit(
    k: torch.Tensor,
    v: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    path: torch.Tensor,
    commit_lens: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    track_slots: torch.Tensor | None = None,
    track_steps: torch.Tensor | None = None,
    *,
    raw: RawRecord | None = None,
) -> None:
    """The twin of ``reference.gdn_replay_commit``, in place; one layer, or all at once with a leading dimension.

    One layer: k [bs, T, H, K], v [bs, T, HV, V], a, b [bs, T, HV], state [n_slots, HV, V, K].
    All layers: every tensor but path, commit_lens and the slot tensors gets a leading layer dimension (a_log and
    dt_bias too).  With ``raw``, ``k`` holds the raw convolution inputs [.., bs, T, C] and ``v`` is None; call it
    before ``conv_commit``.
    """
    op = "gdn_replay_commit"
    require_runnable(k, op)
    bs = path.shape[0]
    if state.dim() == 4:
        k, a, b, a_log, dt_bias, state = (x[None] for x in (k, a, b, a_log, dt_bias, state))
        v = None if v is None else v[None]
    layers, _, value_heads, value_dim, key_dim = state.shape
    require(state.stride(4) == 1 and state.stride(3) == key_dim, op, "a head's state must be contiguous.")
    require(state.stride(2) == key_dim * value_dim, op, "a slot's heads must be contiguous.")
    require(a.stride() == b.stride() and a.stride(3) == 1, op, "a and b must be laid out alike.")
    require(a_log.is_contiguous() and dt_bias.is_contiguous(), op, "a_log and dt_bias must be contiguous.")
    if raw is None:
        require(
            v is not None and (layers == 1 or v.stride(0) == k.stride(0)),
            op,
            "layers of k and v must be equally far apart.",
        )
        heads, channels = k.shape[3], 0
        conv, weight, bias, activation = k, k, None, None
        conv_strides = (0, 0, 0, 0)
    else:
        heads, channels = raw.key_heads, k.shape[3]
        require(raw.weight.is_contiguous(), op, "the convolution weights must be contiguous.")
        require(
            channels == 2 * heads * key_dim + value_heads * value_dim, op, f"{channels} channels do not fit the heads."
        )
        conv, weight, bias, activation = raw.conv_state, raw.weight, raw.bias, raw.activation
        conv_strides = conv.stride() if conv.dim() == 4 else (0, *conv.stride())
    width = k.shape[2]
    require(k.stride(-1) == 1 and (bs <= 1 or k.stride(1) == width * k.stride(2)), op, "rows must be evenly spaced.")
    if bs == 0:
        return
    track = track_slots is not None and track_steps is not None
    lanes, parts = key_parts(np2(key_dim))
    _gdn_replay_commit_kernel[(triton.cdiv(value_dim, BV), layers * value_heads, bs)](
        k, k if v is None else v, a, b, a_log, dt_bias, path, commit_lens, state, slots,
        slots if track_slots is None else track_slots, slots if track_steps is None else track_steps,
        conv, weight, weight if bias is None else bias,
        width, path.shape[1], channels, k.stride(0), k.stride(2), (k if v is None else v).stride(2), a.stride(0), a.stride(2),
        state.stride(0), state.stride(1), *conv_strides,
        H=heads, HV=value_heads, K=key_dim, V=value_dim, BK=np2(key_dim), BV=BV, LANES=lanes, PARTS=parts, RAW=raw is not None,
        BIAS=bias is not None, SILU=activation is not None, TRACK=track, num_warps=1, num_stages=3,
    )  # fmt: skip


def variants() -> Iterator[Variant]:
    for dtype in ("*bf16",):
        signature = dict.fromkeys(("k_ptr", "v_ptr", "a_ptr", "b_ptr"), dtype)
        signature |= {
            "a_log_ptr": "*fp32", "dt_ptr": "*fp32", "path_ptr": "*i64", "commit_ptr": "*i32", "state_ptr": "*fp32",
            "slot_ptr": "*i32", "track_slot_ptr": "*i64", "track_step_ptr": "*i64", "conv_ptr": dtype,
            "weight_ptr": dtype, "bias_ptr": dtype,
        }  # fmt: skip
        signature |= dict.fromkeys(
            ("T", "BLOCK", "C", "stride_layer", "stride_k", "stride_v", "stride_gate_layer", "stride_gate"), "i32"
        )
        signature |= {"stride_state_layer": "i64", "stride_state_slot": "i32", "stride_conv_layer": "i64"}
        signature |= dict.fromkeys(("stride_conv_slot", "stride_conv_channel", "stride_conv_tap"), "i32")
        for raw, track in itertools.product((True, False), (True, False)):
            constexprs = {
                "H": 16, "HV": 48, "K": 128, "V": 128, "BK": 128, "BV": BV, "LANES": 32, "PARTS": 4, "RAW": raw,
                "BIAS": False, "SILU": True, "TRACK": track,
            }  # fmt: skip
            yield Variant(
                "gdn_replay_commit", _gdn_replay_commit_kernel, signature, constexprs, num_warps=1, num_stages=3,
                label=f"{dtype[1:]} raw={raw} track={track}",
            )  # fmt: skip
