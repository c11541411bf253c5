"""Gated DeltaNet layer: the gated delta rule in chunks, in plain PyTorch that torch.compile handles."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .layers import Compiled, Tensor, linear, rms_norm, swiglu
from .spec import RMS_EPS

CHUNK = 64


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Inverse of I + ``lower`` for strictly lower triangular [..., C, C]: 16-wide Neumann blocks, then merging."""
    size = lower.shape[-1]
    width = min(16, size)
    blocks = torch.stack([lower[..., i : i + width, i : i + width] for i in range(0, size, width)], -3)
    power, inverse, reach = blocks, torch.eye(width, device=lower.device, dtype=lower.dtype) - blocks, 2
    while reach < width:
        power = power @ power
        inverse = inverse + inverse @ power
        reach *= 2
    while width < size:
        left, right = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        below = torch.stack(
            [lower[..., i + width : i + 2 * width, i : i + width] for i in range(0, size, 2 * width)], -3
        )
        corner = -(right @ below @ left)
        zero = torch.zeros_like(corner)
        inverse = torch.cat([torch.cat([left, zero], -1), torch.cat([corner, right], -1)], -2)
        width *= 2
    return inverse[..., 0, :, :]


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Gated delta rule from a zero state; q, k (unit length), v [B, T, H, D], log_decay, beta [B, T, H] -> [B, T, H, D]."""
    batch, length, heads, dim = q.shape
    dtype, padding = q.dtype, -length % CHUNK
    if padding:
        q, k, v = (F.pad(t, (0, 0, 0, 0, 0, padding)) for t in (q, k, v))
        log_decay, beta = (F.pad(t, (0, 0, 0, padding)) for t in (log_decay, beta))
    chunks = (length + padding) // CHUNK
    q, k, v = (t.float().view(batch, chunks, CHUNK, heads, -1).permute(0, 3, 1, 2, 4) for t in (q, k, v))
    log_decay, beta = (t.float().view(batch, chunks, CHUNK, heads).permute(0, 3, 1, 2) for t in (log_decay, beta))
    q = q * dim**-0.5
    total = log_decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).tril()
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    weighted = k * beta.unsqueeze(-1)
    solve = unit_lower_inverse(((weighted @ k.transpose(-1, -2)) * decay).tril(-1))
    values = solve @ (v * beta.unsqueeze(-1))
    keys = solve @ (weighted * total.exp().unsqueeze(-1))
    queries = q * total.exp().unsqueeze(-1)
    inside = (q @ k.transpose(-1, -2)) * decay
    carried = k * (total[..., -1:] - total).exp().unsqueeze(-1)
    chunk_decay = total[..., -1].exp()
    state = q.new_zeros(batch, heads, dim, v.shape[-1])
    outputs = []
    for c in range(chunks):
        fresh = values[:, :, c] - keys[:, :, c] @ state
        outputs.append(queries[:, :, c] @ state + inside[:, :, c] @ fresh)
        state = state * chunk_decay[:, :, c, None, None] + carried[:, :, c].transpose(-1, -2) @ fresh
    out = torch.stack(outputs, 2).permute(0, 2, 3, 1, 4).reshape(batch, length + padding, heads, -1)
    return out[:, :length].to(dtype)


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _causal_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """Depthwise causal convolution over [B, T, C] with kernel [C, 1, K], then SiLU."""
    taps = kernel.shape[-1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    weight = kernel[:, 0].to(x.dtype)
    return F.silu(sum(padded[:, j : j + x.shape[1]] * weight[:, j] for j in range(taps)))


def _project(x: Tensor, w: dict[str, Tensor], key_heads: int, dim: int) -> tuple[Tensor, ...]:
    """Everything before the delta rule: q, k, v, log decay, beta and the output gate."""
    h = rms_norm(x, w["input_layernorm"], True)
    mixed = _causal_conv(linear(h, w["in_proj_qkv"]), w["conv1d"])
    key_width = key_heads * dim
    q, k, v = mixed.split([key_width, key_width, mixed.shape[-1] - 2 * key_width], -1)
    v = v.unflatten(-1, (-1, dim)).contiguous()
    repeat = v.shape[2] // key_heads
    q, k = (_unit(t.unflatten(-1, (key_heads, dim))).to(x.dtype).repeat_interleave(repeat, 2) for t in (q, k))
    log_decay = -w["A_log"].float().exp() * F.softplus(linear(h, w["in_proj_a"]).float() + w["dt_bias"])
    beta = torch.sigmoid(linear(h, w["in_proj_b"]).float())
    return q, k, v, log_decay, beta, linear(h, w["in_proj_z"]).unflatten(-1, (-1, dim))


def _finish(x: Tensor, mixed: Tensor, gate: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Gated norm, output projection and MLP."""
    y = mixed.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + RMS_EPS)
    y = (y.to(x.dtype) * w["norm"].to(x.dtype) * F.silu(gate.float())).to(x.dtype)
    x = x + linear(y.flatten(-2), w["out_proj"])
    return x + swiglu(rms_norm(x, w["post_attention_layernorm"], True), w["gate_proj"], w["up_proj"], w["down_proj"])


project, delta_rule, finish = Compiled(_project), Compiled(chunked_delta_rule), Compiled(_finish)


def gdn_layer(x: Tensor, w: dict[str, Tensor], key_heads: int, dim: int) -> Tensor:
    """Three compiled pieces: one graph of everything takes inductor minutes."""
    *inputs, gate = project(x, w, key_heads, dim)
    return finish(x, delta_rule(*inputs), gate, w)
