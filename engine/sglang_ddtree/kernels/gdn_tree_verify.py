"""Gated DeltaNet over a tree without a state per node: one read of the root state per head.

With G_i the sum of log decays from the root to row i, D_ij = e^{G_i - G_j} for ancestors j of i, and unit keys:
    (I + A) U = W,   A_ij = beta_i D_ij (k_i . k_j),   W_i = beta_i (v_i - e^{G_i} S0 k_i)
    O_i = e^{G_i} S0 q_i + sum_{j = i or ancestor} D_ij (q_i . k_j) U_j
A is nilpotent (a row has at most L ancestors), so (I + A)^-1 = (I - A)(I + A^2)(I + A^4)...: a few small matrix
products instead of a walk through the levels.  Rows are taken in tiles; a tile reads the U of earlier tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .ancestor_bits import ancestor_bits
from .common import SHARED_LIMIT, Variant, device_limit, interpreting, np2, require, require_runnable

FULL = 64


@dataclass(frozen=True)
class VerifyConfig:
    """Tile of one program: ``bv`` value channels of one head; ``solve`` = precision of the triangular solve."""

    bv: int
    warps: int
    solve: str = "tf32x3"
    needs_shared: int = 0  # bytes at 128 key channels, as the compile matrix measures them


# In order of preference.  Every entry is tested (selftest, interpreter tests) before the launcher may pick it.
# (32 value channels with bf16x3 faulted at 128 rows on an H200 with Triton 3.6, so there is no such entry.)
CONFIGS = (
    VerifyConfig(64, 4, "bf16x3", needs_shared=98 << 10),
    VerifyConfig(16, 4, "tf32x3", needs_shared=90 << 10),
)


def tail_rows(width: int) -> int:
    """Rows of the last, smaller tile (0 = the width is a multiple of the full tile)."""
    rest = width % FULL
    return 0 if rest == 0 else max(16, np2(rest))


@triton.jit
def _mma(x, y, EMULATE: tl.constexpr):
    """x @ y of two 16-bit operands; the interpreter knows no bfloat16 products, so there both are widened."""
    if EMULATE:
        product = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(x, y)
    return product


@triton.jit
def _against_state(x, p_state, SPLIT: tl.constexpr, EMULATE: tl.constexpr):
    """x [R, K] @ S0^T [K, BV]: 16-bit x against the state's upper and lower halves, or full float32.

    The state is read for each product (from the L2 cache after the first) rather than kept in registers.
    """
    state = tl.trans(tl.load(p_state, volatile=True).to(tl.float32))
    if SPLIT:
        high = state.to(x.dtype)
        low = (state - high.to(tl.float32)).to(x.dtype)
        product = _mma(x, high, EMULATE) + _mma(x, low, EMULATE)
    else:
        product = tl.dot(x.to(tl.float32), state, input_precision="tf32x3")
    return product


@triton.jit
def _pairs(x, y, SPLIT: tl.constexpr, EMULATE: tl.constexpr):
    """x [R, K] @ y^T [K, C]."""
    if SPLIT:
        product = _mma(x, tl.trans(y), EMULATE)
    else:
        product = tl.dot(x.to(tl.float32), tl.trans(y.to(tl.float32)), input_precision="tf32x3")
    return product


@triton.jit
def _log_decay(a_ptr, at, a_log_ptr, dt_ptr, hv, mask):
    x = tl.load(a_ptr + at, mask=mask, other=0.0).to(tl.float32) + tl.load(dt_ptr + hv).to(tl.float32)
    soft = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
    return tl.where(mask, -tl.exp(tl.load(a_log_ptr + hv).to(tl.float32)) * soft, 0.0)


@triton.jit
def _inverse_norm(x):
    x = x.to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(x * x, 1) + 1e-6)


@triton.jit
def _visible(bits_ptr, flat, W, c, lane, mask):
    """[R, C] 1.0 where column c + lane is a strict ancestor of the row."""
    word = tl.load(bits_ptr + flat * W + c // 64, mask=mask, other=0)
    shift = (c % 64 + lane).to(tl.int64)
    return ((word[:, None] >> shift[None, :]) & 1) == 1


@triton.jit
def _decay(total, total_c, norm_c, seen):
    """[R, C] e^{G_i - G_j} |k_j|^-1 where row i sees column j, else 0 (the exponent of an ancestor is never > 0)."""
    return tl.where(seen, tl.exp(tl.minimum(total[:, None] - total_c[None, :], 0.0)) * norm_c[None, :], 0.0)


@triton.jit
def _precise(x, y, SOLVE: tl.constexpr, EMULATE: tl.constexpr):
    """x @ y of float32 operands.  bf16x3: three products of 16-bit halves, relative error about 2^-16."""
    if SOLVE == "bf16x3":
        x_high = x.to(tl.bfloat16)
        x_low = (x - x_high.to(tl.float32)).to(tl.bfloat16)
        y_high = y.to(tl.bfloat16)
        y_low = (y - y_high.to(tl.float32)).to(tl.bfloat16)
        product = _mma(x_high, y_low, EMULATE) + _mma(x_low, y_high, EMULATE)
        product += _mma(x_high, y_high, EMULATE)
    else:
        product = tl.dot(x, y, input_precision=SOLVE)
    return product


@triton.jit
def _tile(
    q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, bits_ptr, u_ptr, total_ptr, o_ptr, p_state,
    b, hv, r, T, W, stride_q, stride_k, stride_v, stride_a, stride_b, scale,
    HV: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, FACTORS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, SPLIT: tl.constexpr,
    SOLVE: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Rows r .. r+R-1 of one head and BV value channels.

    The key side comes first, the query side after the solve: together they would not fit the registers.
    """
    channel = tl.arange(0, K)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    lane = tl.arange(0, R)
    wide = tl.arange(0, C)
    row = r + lane
    inside = row < T
    flat = b * T + row
    h = hv // GROUP
    totals = total_ptr + (tl.program_id(0) * HV + hv) * tl.num_programs(2) * T
    k = tl.load(k_ptr + flat[:, None] * stride_k + h * K + channel[None, :], mask=inside[:, None], other=0.0)
    k_norm = _inverse_norm(k)
    g = _log_decay(a_ptr, flat * stride_a + hv, a_log_ptr, dt_ptr, hv, inside)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b_ptr + flat * stride_b + hv, mask=inside, other=0.0).to(tl.float32)))
    own = lane[:, None] == lane[None, :]
    strict = _visible(bits_ptr, flat, W, r, lane, inside)
    total = tl.sum(tl.where(strict | own, g[None, :], 0.0), 1)
    if not FIRST:
        # The log decay of a row adds up over its ancestors in earlier tiles too.
        for c in range(0, r, C):
            g_c = _log_decay(a_ptr, (b * T + c + wide) * stride_a + hv, a_log_ptr, dt_ptr, hv, c + wide < T)
            seen = _visible(bits_ptr, flat, W, c, wide, inside)
            total += tl.sum(tl.where(seen, g_c[None, :], 0.0), 1)
    v = tl.load(v_ptr + flat[:, None] * stride_v + hv * V + value[None, :], mask=inside[:, None], other=0.0)
    u = _against_state(k, p_state, SPLIT, EMULATE)
    u = beta[:, None] * (v.to(tl.float32) - (tl.exp(total) * k_norm)[:, None] * u)
    if not FIRST:
        for c in range(0, r, C):
            at = b * T + c + wide
            k_c = tl.load(k_ptr + at[:, None] * stride_k + h * K + channel[None, :])
            u_c = tl.load(u_ptr + (at[:, None] * HV + hv) * V + value[None, :])
            seen = _visible(bits_ptr, flat, W, c, wide, inside)
            decay = _decay(total, tl.load(totals + at), _inverse_norm(k_c), seen)
            u -= _precise((beta * k_norm)[:, None] * decay * _pairs(k, k_c, SPLIT, EMULATE), u_c, SOLVE, EMULATE)
    power = -(beta * k_norm)[:, None] * _decay(total, total, k_norm, strict) * _pairs(k, k, SPLIT, EMULATE)
    u += _precise(power, u, SOLVE, EMULATE)
    for _ in tl.static_range(FACTORS):
        power = _precise(power, power, SOLVE, EMULATE)
        u += _precise(power, u, SOLVE, EMULATE)
    if not LAST:
        tl.store(u_ptr + (flat[:, None] * HV + hv) * V + value[None, :], u, mask=inside[:, None])
        tl.store(totals + flat, total, mask=inside)
        tl.debug_barrier()  # later tiles of this program read what its other threads wrote

    q = tl.load(q_ptr + flat[:, None] * stride_q + h * K + channel[None, :], mask=inside[:, None], other=0.0)
    q_norm = _inverse_norm(q) * scale
    weight = _decay(total, total, k_norm, strict | own) * _pairs(q, k, SPLIT, EMULATE)
    out = tl.exp(total)[:, None] * _against_state(q, p_state, SPLIT, EMULATE)
    out += tl.dot(weight, u, input_precision="tf32" if SPLIT else "tf32x3")
    if not FIRST:
        for c in range(0, r, C):
            at = b * T + c + wide
            k_c = tl.load(k_ptr + at[:, None] * stride_k + h * K + channel[None, :])
            u_c = tl.load(u_ptr + (at[:, None] * HV + hv) * V + value[None, :])
            seen = _visible(bits_ptr, flat, W, c, wide, inside)
            cross = _decay(total, tl.load(totals + at), _inverse_norm(k_c), seen) * _pairs(q, k_c, SPLIT, EMULATE)
            out += tl.dot(cross, u_c, input_precision="tf32" if SPLIT else "tf32x3")
    out = q_norm[:, None] * out
    tl.store(
        o_ptr + (flat[:, None] * HV + hv) * V + value[None, :], out.to(o_ptr.dtype.element_ty), mask=inside[:, None]
    )


@triton.jit
def _gdn_tree_verify_kernel(
    q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, state_ptr, slot_ptr, bits_ptr, u_ptr, total_ptr, o_ptr,
    T, W, stride_q, stride_k, stride_v, stride_a, stride_b, stride_slot, stride_head, scale,
    HV: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, FULL: tl.constexpr,
    TAIL: tl.constexpr, TILES: tl.constexpr, FACTORS: tl.constexpr, SPLIT: tl.constexpr, SOLVE: tl.constexpr,
    EMULATE: tl.constexpr,
):  # fmt: skip
    hv = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    slot = tl.load(slot_ptr + b).to(tl.int64)
    if slot < 0:  # a padding request: its output is 0, like upstream's
        for r in range(0, T, 16):
            row = r + tl.arange(0, 16)
            at = ((b * T + row)[:, None] * HV + hv) * V + value[None, :]
            tl.store(o_ptr + at, tl.zeros((16, BV), o_ptr.dtype.element_ty), mask=(row < T)[:, None])
        return
    channel = tl.arange(0, K)
    p_state = state_ptr + slot * stride_slot + hv * stride_head + value[:, None] * K + channel[None, :]
    if TILES == 1 and TAIL == 0:
        _tile(
            q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, bits_ptr, u_ptr, total_ptr, o_ptr, p_state,
            b, hv, 0, T, W, stride_q, stride_k, stride_v, stride_a, stride_b, scale,
            HV, GROUP, K, V, BV, FULL, FULL, FACTORS, True, True, SPLIT, SOLVE, EMULATE,
        )  # fmt: skip
    elif TILES > 0:
        for tile in range(TILES):
            _tile(
                q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, bits_ptr, u_ptr, total_ptr, o_ptr, p_state,
                b, hv, tile * FULL, T, W, stride_q, stride_k, stride_v, stride_a, stride_b, scale,
                HV, GROUP, K, V, BV, FULL, FULL, FACTORS, False, False, SPLIT, SOLVE, EMULATE,
            )  # fmt: skip
    if TAIL > 0:
        _tile(
            q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, bits_ptr, u_ptr, total_ptr, o_ptr, p_state,
            b, hv, TILES * FULL, T, W, stride_q, stride_k, stride_v, stride_a, stride_b, scale,
            HV, GROUP, K, V, BV, TAIL, FULL, FACTORS, TILES == 0, True, SPLIT, SOLVE, EMULATE,
        )  # fmt: skip


@dataclass
class VerifyScratch:
    """U and G of the rows that later tiles read; shared by all layers, since layers run one after another."""

    u: torch.Tensor
    total: torch.Tensor

    @classmethod
    def empty(cls, bs: int, width: int, heads: int, value_dim: int, device: torch.device | str) -> VerifyScratch:
        rows = bs * width if width > FULL else 0
        return cls(
            u=torch.empty((rows * heads * value_dim,), dtype=torch.float32, device=device),
            total=torch.empty((rows * heads * (value_dim // 16),), dtype=torch.float32, device=device),
        )


def pick_config(value_dim: int, limit: int) -> VerifyConfig:
    """The first tile that divides the value channels and fits the device's shared memory."""
    for config in CONFIGS:
        if value_dim % config.bv == 0 and limit >= config.needs_shared:
            return config
    raise ValueError(f"gdn_tree_verify: value head size {value_dim} must be a multiple of 16.")


def factors(max_depth: int) -> int:
    """Squarings after the first factor so that 2^(n+1) covers the longest path (max_depth + 1 rows)."""
    n = 0
    while 2 ** (n + 1) < max_depth + 1:
        n += 1
    return n


def gdn_tree_verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    tables: TreeTables,
    *,
    bits: torch.Tensor | None = None,
    config: VerifyConfig | None = None,
    out: torch.Tensor | None = None,
    scratch: VerifyScratch | None = None,
) -> torch.Tensor:
    """The twin of ``reference.gdn_tree_verify``; ``state`` is only read.

    q, k [bs, T, H, K], v [bs, T, HV, V] (views of one convolution output are fine), a, b [bs, T, HV],
    state [n_slots, HV, V, K], slots [bs] (negative: output 0).  Returns [bs, T, HV, V] in v's dtype.
    """
    op = "gdn_tree_verify"
    require_runnable(q, op)
    bs, width, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2], v.shape[3]
    require(key_dim in (16, 32, 64, 128, 256), op, f"key head size must be a power of two 16..256, got {key_dim}.")
    require(value_dim % 16 == 0, op, f"value head size must be a multiple of 16, got {value_dim}.")
    require(value_heads % heads == 0, op, f"{value_heads} value heads do not divide into {heads} key heads.")
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(x.stride(3) == 1 and x.stride(2) == x.shape[3], op, f"heads of a row of {name} must be adjacent.")
        require(bs <= 1 or x.stride(0) == width * x.stride(1), op, f"rows of {name} must be evenly spaced.")
    require(state.stride(3) == 1 and state.stride(2) == key_dim, op, "a head's state must be contiguous.")
    require(a.stride(2) == 1 and b.stride(2) == 1, op, "a and b must be contiguous along heads.")
    if bits is None:
        bits = ancestor_bits(tables)
    if out is None:
        out = torch.empty((bs, width, value_heads, value_dim), dtype=v.dtype, device=v.device)
    if bs == 0:
        return out
    config = config or pick_config(value_dim, device_limit(q))
    require(value_dim % config.bv == 0, op, f"tile {config.bv} does not divide the value head size {value_dim}.")
    if scratch is None:
        scratch = VerifyScratch.empty(bs, width, value_heads, value_dim, q.device)
    _gdn_tree_verify_kernel[(value_dim // config.bv, value_heads, bs)](
        q, k, v, a, b, a_log, dt_bias, state, slots, bits, scratch.u, scratch.total, out,
        width, bits.shape[2], q.stride(1), k.stride(1), v.stride(1), a.stride(1), b.stride(1),
        state.stride(0), state.stride(1), key_dim**-0.5,
        HV=value_heads, GROUP=value_heads // heads, K=key_dim, V=value_dim, BV=config.bv, FULL=FULL,
        TAIL=tail_rows(width), TILES=width // FULL, FACTORS=factors(tables.max_depth),
        SPLIT=k.dtype != torch.float32, SOLVE=config.solve, EMULATE=interpreting(),
        num_warps=config.warps, num_stages=1,
    )  # fmt: skip
    return out


def variants() -> Iterator[Variant]:
    order = ("q_ptr", "k_ptr", "v_ptr", "a_ptr", "b_ptr")
    signature = dict.fromkeys(order, "*bf16")
    signature |= {"a_log_ptr": "*fp32", "dt_ptr": "*fp32", "state_ptr": "*fp32", "slot_ptr": "*i32", "bits_ptr": "*i64",
                  "u_ptr": "*fp32", "total_ptr": "*fp32", "o_ptr": "*bf16", "T": "i32", "W": "i32"}  # fmt: skip
    strides = ("stride_q", "stride_k", "stride_v", "stride_a", "stride_b", "stride_slot", "stride_head")
    signature |= dict.fromkeys(strides, "i32") | {"scale": "fp32"}
    for config in CONFIGS:
        fits = tuple(arch for arch, limit in SHARED_LIMIT.items() if limit >= config.needs_shared)
        # One tile of each height, and a loop over full tiles with a tail: together every path of the kernel.
        for tiles, tail in ((0, 16), (0, 32), (0, 64), (2, 16)):
            constexprs = {
                "HV": 48, "GROUP": 3, "K": 128, "V": 128, "BV": config.bv, "FULL": FULL, "TAIL": tail,
                "TILES": tiles, "FACTORS": 3, "SPLIT": True, "SOLVE": config.solve, "EMULATE": False,
            }  # fmt: skip
            yield Variant(
                "gdn_tree_verify", _gdn_tree_verify_kernel, signature, constexprs, num_warps=config.warps,
                label=f"BV{config.bv} W{config.warps} {config.solve} {tiles}x{FULL}+{tail}", architectures=fits,
            )  # fmt: skip
