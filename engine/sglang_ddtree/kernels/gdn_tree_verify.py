"""Gated DeltaNet over a tree without a state per node: one read of the root state per head.

With unit keys and queries, G_i the sum of log decays from the root to row i, and sums over i and its ancestors:
    o_i = e^{G_i} (q_i - sum_j z_ij beta_j k_j) S0^T + sum_j z_ij beta_j e^{G_i - G_j} v_j
    z_ij = q_i . k_j - sum_m z_im beta_m (k_m . k_j),   m = i and the ancestors of i below j
The weights z of a row live on its own path of at most L + 1 rows, so they are solved row by row, from the row up,
without any matrix inverse; only then do they become a matrix, for three products.  (They are the row's line of
B (I + A)^-1 in the WY form, with the decays divided out; U itself is not needed, since the commit replays the path.)
A first small kernel makes the products of all pairs of keys and queries once per key head.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .ancestor_bits import ancestor_bits
from .common import JUDGED_ON, SHARED_LIMIT, Variant, interpreting, np2, require, require_runnable
from .early import OVERLAP_FROM, can_overlap, prefetch
from .gdn_root import root_column, root_output, root_pairs
from .gdn_tiles import CANDIDATES, CONFIGS, VerifyConfig, pair_block, pick_config


@triton.jit
def _mma(x, y, EMULATE: tl.constexpr):
    """x @ y of two 16-bit operands; the interpreter knows no bfloat16 products, so there both are widened."""
    if EMULATE:
        product = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(x, y)
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
def _visible(bits_ptr, flat, W, c, lane, mask, ROOT: tl.constexpr):
    """[R, C] True where column c + lane is a strict ancestor of the row."""
    word = tl.load(bits_ptr + flat * W + c // 64, mask=mask, other=0)[:, None]
    shift = c % 64 + lane
    if ROOT:  # columns start at 1, so the last of them may have their bits in the next word
        after = tl.load(bits_ptr + flat * W + c // 64 + 1, mask=mask & (c // 64 + 1 < W), other=0)[:, None]
        word = tl.where((shift < 64)[None, :], word, after)
        shift %= 64
    return ((word >> shift.to(tl.int64)[None, :]) & 1) == 1


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
def _by_exact(x, y, SPLIT: tl.constexpr, EMULATE: tl.constexpr):
    """float32 x @ y, where y is an input: 16-bit y takes two products, since it has no lower half."""
    if SPLIT:
        high = x.to(y.dtype)
        low = (x - high.to(tl.float32)).to(y.dtype)
        product = _mma(low, y, EMULATE) + _mma(high, y, EMULATE)
    else:
        product = tl.dot(x, y.to(tl.float32), input_precision="tf32x3")
    return product


@triton.jit
def _pairs_kernel(
    q_ptr, k_ptr, kk_ptr, qk_ptr, norm_ptr, T, stride_q, stride_k, scale,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, ROOT: tl.constexpr, EARLY: tl.constexpr, SPLIT: tl.constexpr,
    EMULATE: tl.constexpr,
):  # fmt: skip
    """One C x C block of the unit keys' products with each other and with the unit (and scaled) queries."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    blocks = tl.maximum(tl.cdiv(T - ROOT, C), 1)
    r, c = ROOT + tl.program_id(0) // blocks * C, ROOT + tl.program_id(0) % blocks * C
    if c > r:  # no row has an ancestor after itself
        return
    h = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    lane = tl.arange(0, C)
    channel = h * K + tl.arange(0, K)
    row, column = r + lane, c + lane
    p_row = (b * T + row)[:, None]
    k_c = tl.load(
        k_ptr + (b * T + column)[:, None] * stride_k + channel[None, :], mask=(column < T)[:, None], other=0.0
    )
    k = tl.load(k_ptr + p_row * stride_k + channel[None, :], mask=(row < T)[:, None], other=0.0)
    q = tl.load(q_ptr + p_row * stride_q + channel[None, :], mask=(row < T)[:, None], other=0.0)
    norm, norm_c = _inverse_norm(k), _inverse_norm(k_c)
    at = ((b * H + h) * T + row)[:, None] * T + column[None, :]
    inside = (row < T)[:, None] & (column < T)[None, :]
    tl.store(kk_ptr + at, norm[:, None] * norm_c[None, :] * _pairs(k, k_c, SPLIT, EMULATE), mask=inside)
    q_norm = _inverse_norm(q) * scale
    tl.store(qk_ptr + at, q_norm[:, None] * norm_c[None, :] * _pairs(q, k_c, SPLIT, EMULATE), mask=inside)
    if r == c:
        tl.store(norm_ptr + (b * H + h) * T + row, norm, mask=row < T)
    if ROOT:
        if c == 1:
            root_pairs(
                q_ptr, k_ptr, kk_ptr, qk_ptr, norm_ptr, k, q, norm, q_norm, b, h, row, r, T, stride_q, stride_k, scale, H, K,
            )  # fmt: skip


@triton.jit
def _spread(z, bits_ptr, dep_ptr, b, r, c, T, W, R: tl.constexpr, D: tl.constexpr, ROOT: tl.constexpr):
    """z [R, D] by hops from the row -> [R, R] by column c .. c+R-1, 0 where a column is not on the row's path."""
    lane = tl.arange(0, R)
    flat = b * T + r + lane
    inside = r + lane < T
    seen = _visible(bits_ptr, flat, W, c, lane, inside, ROOT) | ((r + lane)[:, None] == (c + lane)[None, :])
    depth = tl.load(dep_ptr + flat, mask=inside, other=0)
    depth_c = tl.load(dep_ptr + b * T + c + lane, mask=c + lane < T, other=0)
    hops = tl.minimum(tl.maximum(depth[:, None] - depth_c[None, :], 0), D - 1)
    return tl.where(seen, tl.gather(z, hops, 1), 0.0)


@triton.jit
def _path_weights(
    a_ptr, b_ptr, a_log_ptr, dt_ptr, anc_ptr, kk_ptr, qk_ptr, norm_ptr, b, hv, r, T, stride_a, stride_b,
    H: tl.constexpr, GROUP: tl.constexpr, L: tl.constexpr, D: tl.constexpr, R: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For rows r .. r+R-1 and the D rows up from each: z beta |k|^-1, z beta e^{G_i - G_j}; and e^{G_i} [R].

    Hops are the first dimension, so that a row's path lies in one warp.
    """
    lane = tl.arange(0, R)
    hop = tl.arange(0, D)[:, None]
    inside = r + lane < T
    flat = b * T + r + lane
    path = tl.load(anc_ptr + flat[None, :] * L + hop - 1, mask=inside[None, :] & (hop > 0) & (hop <= L), other=-1)
    path = tl.where(hop == 0, (r + lane)[None, :], path)
    there = (path >= 0) & inside[None, :]
    at = b * T + path
    g = _log_decay(a_ptr, at * stride_a + hv, a_log_ptr, dt_ptr, hv, there)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b_ptr + at * stride_b + hv, mask=there, other=0.0).to(tl.float32)))
    head = (b * H + hv // GROUP) * T
    if EARLY:
        tl.extra.cuda.gdc_wait()  # from here on it reads what the pairs kernel writes
    z = tl.load(qk_ptr + (head + r + lane)[None, :] * T + path, mask=there, other=0.0)
    for step in tl.static_range(L):
        # Row ``step`` hops up has its weight; the rows above it lose what goes through it.
        index = tl.full((D, R), step, tl.int32)
        pair = tl.load(kk_ptr + (head + tl.gather(path, index, 0)) * T + path, mask=there & (hop > step), other=0.0)
        z -= tl.gather(z * beta, index, 0) * pair
    z *= beta
    below = tl.cumsum(g, 0) - g
    norm = tl.load(norm_ptr + head + path, mask=there, other=0.0)
    return tl.trans(z * norm), tl.trans(z * tl.exp(tl.minimum(below, 0.0))), tl.exp(tl.sum(g, 0))


@triton.jit
def _tile(
    q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, anc_ptr, dep_ptr, bits_ptr, kk_ptr, qk_ptr, norm_ptr,
    o_ptr, p_state, b, hv, r, T, W, stride_q, stride_k, stride_v, stride_a, stride_b, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    BV: tl.constexpr, CHUNKS: tl.constexpr, R: tl.constexpr, ROOT: tl.constexpr, EARLY: tl.constexpr, SPLIT: tl.constexpr,
    SOLVE: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Rows r .. r+R-1 of one head, CHUNKS * BV value channels."""
    lane = tl.arange(0, R)
    inside = r + lane < T
    flat = b * T + r + lane
    key = hv // GROUP * K + tl.arange(0, K)
    value = tl.program_id(0) * (BV * CHUNKS) + tl.arange(0, BV)
    z_k, z_v, decay = _path_weights(
        a_ptr, b_ptr, a_log_ptr, dt_ptr, anc_ptr, kk_ptr, qk_ptr, norm_ptr, b, hv, r, T, stride_a, stride_b,
        H, GROUP, L, D, R, EARLY,
    )  # fmt: skip
    q = tl.load(q_ptr + flat[:, None] * stride_q + key[None, :], mask=inside[:, None], other=0.0)
    y = (_inverse_norm(q) * scale)[:, None] * q.to(tl.float32)
    if ROOT:
        root_k = tl.load(k_ptr + b * T * stride_k + key).to(tl.float32)
        root_z = root_column(z_v, dep_ptr, b, r, T, R, D)
        y -= root_column(z_k, dep_ptr, b, r, T, R, D)[:, None] * root_k[None, :]
    for c in range(ROOT, r + R, R):
        k = tl.load(
            k_ptr + (b * T + c + lane)[:, None] * stride_k + key[None, :], mask=(c + lane < T)[:, None], other=0.0
        )
        y -= _by_exact(_spread(z_k, bits_ptr, dep_ptr, b, r, c, T, W, R, D, ROOT), k, SPLIT, EMULATE)
    y *= decay[:, None]
    for chunk in range(CHUNKS):
        channel = hv * V + value + chunk * BV
        out = _precise(y, tl.trans(tl.load(p_state + chunk * BV * K).to(tl.float32)), SOLVE, EMULATE)
        if ROOT:
            root_v = tl.load(v_ptr + b * T * stride_v + channel).to(tl.float32)
            out += root_z[:, None] * root_v[None, :]
        for c in range(ROOT, r + R, R):
            at = (b * T + c + lane)[:, None]
            v = tl.load(v_ptr + at * stride_v + channel[None, :], mask=(c + lane < T)[:, None], other=0.0)
            out += _by_exact(_spread(z_v, bits_ptr, dep_ptr, b, r, c, T, W, R, D, ROOT), v, SPLIT, EMULATE)
        p_out = o_ptr + flat[:, None] * (H * GROUP * V) + channel[None, :]
        tl.store(p_out, out.to(o_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["T", "W", "tiles"])
def _gdn_tree_verify_kernel(
    q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, state_ptr, slot_ptr, anc_ptr, dep_ptr, bits_ptr,
    kk_ptr, qk_ptr, norm_ptr, o_ptr,
    T, W, tiles, stride_q, stride_k, stride_v, stride_a, stride_b, stride_slot, stride_head, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    BV: tl.constexpr, CHUNKS: tl.constexpr, R: tl.constexpr, ROOT: tl.constexpr, EARLY: tl.constexpr, PREFETCH: tl.constexpr,
    SINGLE: tl.constexpr, SPLIT: tl.constexpr, SOLVE: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    hv = tl.program_id(1)
    if SINGLE:
        b = tl.program_id(2).to(tl.int64)
        r = ROOT
    else:
        b = (tl.program_id(2) // tiles).to(tl.int64)
        r = ROOT + (tiles - 1 - tl.program_id(2) % tiles) * R  # the tile with most work starts first
    value = tl.program_id(0) * (BV * CHUNKS) + tl.arange(0, BV)
    slot = tl.load(slot_ptr + b).to(tl.int64)
    if slot < 0:  # a padding request: its output is 0, like upstream's
        row = r + tl.arange(0, R)
        for chunk in range(CHUNKS):
            at = ((b * T + row)[:, None] * (H * GROUP) + hv) * V + value[None, :] + chunk * BV
            tl.store(o_ptr + at, tl.zeros((R, BV), o_ptr.dtype.element_ty), mask=(row < T)[:, None])
            if ROOT:
                if r == 1:
                    root = (b * T * (H * GROUP) + hv) * V + value + chunk * BV
                    tl.store(o_ptr + root, tl.zeros((BV,), o_ptr.dtype.element_ty))
        if EARLY:
            tl.extra.cuda.gdc_wait()  # nobody may follow before the pairs kernel has ended
        return
    if PREFETCH:
        prefetch(
            state_ptr + slot * stride_slot + hv * stride_head + tl.program_id(0) * (BV * CHUNKS * K), BV * CHUNKS * K
        )
    channel = tl.arange(0, K)
    p_state = state_ptr + slot * stride_slot + hv * stride_head + value[:, None] * K + channel[None, :]
    if ROOT:
        if r == 1:
            if EARLY:
                tl.extra.cuda.gdc_wait()
            log_decay = _log_decay(a_ptr, b * T * stride_a + hv, a_log_ptr, dt_ptr, hv, slot >= 0)
            root_output(
                q_ptr, k_ptr, v_ptr, b_ptr, qk_ptr, norm_ptr, o_ptr, p_state, log_decay, b, hv, value, T,
                stride_q, stride_k, stride_v, stride_b, scale, H, GROUP, K, V, BV, CHUNKS,
            )  # fmt: skip
    _tile(
        q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, a_log_ptr, dt_ptr, anc_ptr, dep_ptr, bits_ptr, kk_ptr, qk_ptr, norm_ptr,
        o_ptr, p_state, b, hv, r, T, W, stride_q, stride_k, stride_v, stride_a, stride_b, scale,
        H, GROUP, K, V, L, D, BV, CHUNKS, R, ROOT, EARLY, SPLIT, SOLVE, EMULATE,
    )  # fmt: skip


@dataclass
class VerifyScratch:
    """Products of key and query pairs, and the keys' norms; shared by all layers, since layers run one by one."""

    kk: torch.Tensor
    qk: torch.Tensor
    norm: torch.Tensor

    @classmethod
    def empty(cls, bs: int, width: int, key_heads: int, device: torch.device | str) -> VerifyScratch:
        def new(n: int) -> torch.Tensor:
            return torch.empty((bs * key_heads * width * n,), dtype=torch.float32, device=device)

        return cls(kk=new(width), qk=new(width), norm=new(1))


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
    require(tables.anc.is_contiguous() and tables.dep.is_contiguous(), op, "the tree's tables must be contiguous.")
    if bits is None:
        bits = ancestor_bits(tables)
    if out is None:
        out = torch.empty((bs, width, value_heads, value_dim), dtype=v.dtype, device=v.device)
    if bs == 0:
        return out
    config = config or pick_config(width, bs * value_heads, value_dim)
    own = config.bv * config.chunks
    require(value_dim % own == 0, op, f"{own} channels a program do not divide the value head size {value_dim}.")
    if scratch is None:
        scratch = VerifyScratch.empty(bs, width, heads, q.device)
    block, root = pair_block(config, width, bs * heads), int(config.root)
    early = config.early and not interpreting()
    overlap = early and can_overlap(q)
    scale, split, levels = key_dim**-0.5, k.dtype != torch.float32, tables.max_depth
    _pairs_kernel[(triton.cdiv(max(width - root, 1), block) ** 2, heads, bs)](
        q, k, scratch.kk, scratch.qk, scratch.norm, width, q.stride(1), k.stride(1), scale,
        H=heads, K=key_dim, C=block, ROOT=root, EARLY=overlap, SPLIT=split, EMULATE=interpreting(), num_warps=4, num_stages=1,
    )  # fmt: skip
    tiles = config.tiles(width)
    _gdn_tree_verify_kernel[(value_dim // own, value_heads, bs * tiles)](
        q, k, v, a, b, a_log, dt_bias, state, slots, tables.anc, tables.dep, bits, scratch.kk, scratch.qk, scratch.norm, out,
        width, bits.shape[2], tiles, q.stride(1), k.stride(1), v.stride(1), a.stride(1), b.stride(1),
        state.stride(0), state.stride(1), scale,
        H=heads, GROUP=value_heads // heads, K=key_dim, V=value_dim, L=levels, D=np2(levels + 1), BV=config.bv,
        CHUNKS=config.chunks, R=config.rows, ROOT=root, EARLY=overlap, PREFETCH=early, SINGLE=tiles == 1, SPLIT=split, SOLVE=config.solve,
        EMULATE=interpreting(), num_warps=config.warps, num_stages=1, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
    return out


def variants() -> Iterator[Variant]:
    inputs = dict.fromkeys(("q_ptr", "k_ptr"), "*bf16")
    scratch = dict.fromkeys(("kk_ptr", "qk_ptr", "norm_ptr"), "*fp32")
    pairs = inputs | scratch | {"T": "i32", "stride_q": "i32", "stride_k": "i32", "scale": "fp32"}

    def built_for(picked: bool, overlap: bool, early: bool) -> tuple[int, ...]:
        """From compute capability 9.0 on an early tile overlaps the pairs kernel; before that it only prefetches."""
        archs = tuple(SHARED_LIMIT) if picked else JUDGED_ON
        return tuple(arch for arch in archs if not early or overlap == (arch >= OVERLAP_FROM))

    for block, root, early in itertools.product((16, 32, 64), (0, 1), (False, True)):
        constexprs = {"H": 16, "K": 128, "C": block, "ROOT": root, "EARLY": early, "SPLIT": True, "EMULATE": False}
        yield Variant(
            "gdn_tree_verify", _pairs_kernel, pairs, constexprs, label=f"pairs {block}{' root' * root}{' early' * early}",
            architectures=built_for(True, early, early),
        )  # fmt: skip
    signature = inputs | dict.fromkeys(("v_ptr", "a_ptr", "b_ptr"), "*bf16")
    signature |= {"a_log_ptr": "*fp32", "dt_ptr": "*fp32", "state_ptr": "*fp32", "slot_ptr": "*i32", "anc_ptr": "*i32",
                  "dep_ptr": "*i32", "bits_ptr": "*i64", "o_ptr": "*bf16", "T": "i32", "W": "i32", "tiles": "i32"} | scratch  # fmt: skip
    strides = ("stride_q", "stride_k", "stride_v", "stride_a", "stride_b", "stride_slot", "stride_head")
    signature |= dict.fromkeys(strides, "i32") | {"scale": "fp32"}
    picked = {replace(config, pair=0) for config in CONFIGS}
    # The size of a block of pairs makes no other tile of the verify itself.
    for config in dict.fromkeys(replace(config, pair=0) for config in CONFIGS + CANDIDATES):
        for single, overlap in itertools.product((True, False), (False, True) if config.early else (False,)):
            constexprs = {
                "H": 16, "GROUP": 3, "K": 128, "V": 128, "L": 15, "D": 16, "BV": config.bv, "CHUNKS": config.chunks,
                "R": config.rows, "ROOT": int(config.root), "EARLY": overlap, "PREFETCH": config.early, "SINGLE": single,
                "SPLIT": True, "SOLVE": config.solve, "EMULATE": False,
            }  # fmt: skip
            yield Variant(
                "gdn_tree_verify", _gdn_tree_verify_kernel, signature, constexprs, num_warps=config.warps,
                label=f"{config.label} {config.solve} single={single}",
                architectures=built_for(config in picked, overlap, config.early),
            )  # fmt: skip
