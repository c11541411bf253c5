"""The root's part of the tree verify where it has no tile of its own: a row without ancestors, above all others.

Each of these is a few vectors beside the tile's matrices, where a tile or a block of pairs for one row costs as much
as a full one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def root_pairs(
    q_ptr, k_ptr, kk_ptr, qk_ptr, norm_ptr, k, q, norm, q_norm, b, h, row, r, T, stride_q, stride_k, scale,
    H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The products of some rows with the root's key, and once of the root with itself."""
    channel = h * K + tl.arange(0, K)
    head = (b * H + h) * T
    root_k = tl.load(k_ptr + b * T * stride_k + channel).to(tl.float32)
    root_norm = 1.0 / tl.sqrt(tl.sum(root_k * root_k, 0) + 1e-6)
    products = tl.sum(k.to(tl.float32) * root_k[None, :], 1) * root_norm
    tl.store(kk_ptr + (head + row) * T, norm * products, mask=row < T)
    products = tl.sum(q.to(tl.float32) * root_k[None, :], 1) * root_norm
    tl.store(qk_ptr + (head + row) * T, q_norm * products, mask=row < T)
    if r == 1:
        root_q = tl.load(q_ptr + b * T * stride_q + channel).to(tl.float32)
        unit = scale / tl.sqrt(tl.sum(root_q * root_q, 0) + 1e-6) * root_norm
        tl.store(qk_ptr + head * T, tl.sum(root_q * root_k, 0) * unit)
        tl.store(norm_ptr + head, root_norm)


@triton.jit
def root_column(z, dep_ptr, b, r, T, R: tl.constexpr, D: tl.constexpr):
    """z [R, D] by hops -> [R], the weight of the root, which is a row's last hop; a row of padding has none."""
    lane = tl.arange(0, R)
    depth = tl.load(dep_ptr + b * T + r + lane, mask=r + lane < T, other=0)
    last = (depth[:, None] == tl.arange(0, D)[None, :]) & (depth[:, None] > 0)
    return tl.sum(tl.where(last, z, 0.0), 1)


@triton.jit
def root_output(
    q_ptr, k_ptr, v_ptr, b_ptr, qk_ptr, norm_ptr, o_ptr, p_state, log_decay, b, hv, value, T,
    stride_q, stride_k, stride_v, stride_b, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Writes the root's output in the value channels that start at ``value``: a row without ancestors."""
    at = b * T
    head = (b * H + hv // GROUP) * T
    key = hv // GROUP * K + tl.arange(0, K)
    z = tl.load(qk_ptr + head * T) / (1.0 + tl.exp(-tl.load(b_ptr + at * stride_b + hv).to(tl.float32)))
    q = tl.load(q_ptr + at * stride_q + key).to(tl.float32)
    k = tl.load(k_ptr + at * stride_k + key).to(tl.float32)
    y = scale / tl.sqrt(tl.sum(q * q, 0) + 1e-6) * q - z * tl.load(norm_ptr + head) * k
    y *= tl.exp(log_decay)
    for chunk in range(CHUNKS):
        channel = hv * V + value + chunk * BV
        state = tl.load(p_state + chunk * BV * K).to(tl.float32)
        out = tl.sum(state * y[None, :], 1) + z * tl.load(v_ptr + at * stride_v + channel).to(tl.float32)
        tl.store(o_ptr + at * (H * GROUP * V) + channel, out.to(o_ptr.dtype.element_ty))
