"""Gated DeltaNet layers: short convolution and delta rule, for prefill, decode and verify."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | bool | None = "silu",
    conv_states: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    seq_lens_cpu: Any = None,
    **_: Any,
) -> torch.Tensor:
    """x [dim, T] of several sequences -> [dim, T]; conv_states [slots, dim, W-1] is updated in place."""
    assert conv_states is not None
    assert cache_indices is not None
    assert query_start_loc is not None
    keep = weight.shape[1] - 1
    out = torch.empty_like(x)
    starts = query_start_loc.tolist()
    initial = [False] * len(cache_indices) if has_initial_state is None else has_initial_state.tolist()
    for b, slot in enumerate(cache_indices.tolist()):
        begin, end = starts[b], starts[b + 1]
        if end == begin or slot < 0:
            continue
        before = conv_states[slot] if initial[b] else torch.zeros_like(conv_states[slot])
        history = torch.cat([before.to(x.dtype), x[:, begin:end]], 1)
        y = F.conv1d(
            history[None].float(),
            weight[:, None].float(),
            None if bias is None else bias.float(),
            groups=x.shape[0],
        )[0]
        out[:, begin:end] = _activate(y, activation).to(x.dtype)
        conv_states[slot] = history[:, -keep:].to(conv_states.dtype)
    return out


def _activate(y: torch.Tensor, activation: str | bool | None) -> torch.Tensor:
    return F.silu(y) if activation in ("silu", "swish", True) else y


def _parents(first_child: list[int], next_sibling: list[int]) -> list[int]:
    """Parent of each node from the links; the root and unlinked nodes count as children of node 0."""
    parents = [0] * len(first_child)
    for node, child in enumerate(first_child):
        while child != -1:
            parents[child] = node
            child = next_sibling[child]
    return parents


def _tap_columns(parents: list[int], taps: int) -> torch.Tensor:
    """Columns of [state | x] that each node's convolution reads, oldest first: [T, W]."""
    columns = torch.empty(len(parents), taps, dtype=torch.long)
    for node in range(len(parents)):
        current, above = node, 0
        for tap in range(taps - 1, -1, -1):
            if above == 0:
                columns[node, tap] = taps - 1 + current
                if current == 0:
                    above = 1
                else:
                    current = parents[current]
            else:
                columns[node, tap] = taps - 1 - above
                above += 1
    return columns


def causal_conv1d_update_cpu(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accept_tokens: Any = None,
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    retrieve_next_token: torch.Tensor | None = None,
    retrieve_next_sibling: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    **_: Any,
) -> torch.Tensor:
    """x [B, dim] or [B, dim, T]; with links it is a tree.  The state moves only where no window is asked for."""
    assert conv_state_indices is not None
    assert cache_seqlens is None
    assert num_accept_tokens is None
    single = x.dim() == 2
    if single:
        x = x[..., None]
    batch, dim, width = x.shape
    taps = weight.shape[1]
    slots = conv_state_indices.long()
    history = torch.cat([conv_state[slots].float(), x.float()], 2)
    if retrieve_next_token is None or retrieve_next_sibling is None:
        windows = history.unfold(2, taps, 1)
    else:
        columns = torch.empty(batch, width, taps, dtype=torch.long)
        for b in range(batch):
            parents = _parents(retrieve_next_token[b].tolist(), retrieve_next_sibling[b].tolist())
            if retrieve_parent_token is not None:
                retrieve_parent_token[b, :width] = torch.tensor(parents, dtype=retrieve_parent_token.dtype)
            columns[b] = _tap_columns(parents, taps)
        wide = history[:, :, None, :].expand(batch, dim, width, history.shape[2])
        windows = torch.gather(wide, 3, columns[:, None].expand(batch, dim, width, taps))
    y = (windows * weight.float()[None, :, None, :]).sum(-1)
    if bias is not None:
        y = y + bias.float()[None, :, None]
    y = _activate(y, activation)
    if intermediate_conv_window is not None and intermediate_state_indices is not None:
        rows = intermediate_state_indices.long()
        intermediate_conv_window[rows, :width] = windows[..., 1:].permute(0, 2, 1, 3).to(intermediate_conv_window.dtype)
    else:
        conv_state[slots] = history[:, :, -(taps - 1) :].to(conv_state.dtype)
    out = torch.empty_like(x)  # keeps x's strides: callers view the transpose
    out.copy_(y)
    return out[..., 0] if single else out


def fused_gdn_gating_cpu(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (log decay, write strength), each [1, N, HV] float32."""
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float(), beta, threshold)
    return decay[None], b.float().sigmoid()[None]


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _step(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """state [HV, V, K]; q, k [HV, K]; v [HV, V]; g, beta [HV] -> (new state, output [HV, V])."""
    state = state * g.exp()[:, None, None]
    u = (v - (state * k[:, None, :]).sum(-1)) * beta[:, None]
    state = state + u[:, :, None] * k[:, None, :]
    return state, (state * q[:, None, :]).sum(-1)


def _prepare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, normalise: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Float32 q (scaled), k, v of the first batch row, with one q and k head per value head."""
    group = v.shape[2] // q.shape[2]
    qf, kf, vf = q[0].float(), k[0].float(), v[0].float()
    if normalise:
        qf, kf = _unit(qf), _unit(kf)
    qf = qf * (q.shape[3] ** -0.5 if scale is None else scale)
    return qf.repeat_interleave(group, 1), kf.repeat_interleave(group, 1), vf


def chunk_gated_delta_rule_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    initial_state_indices: torch.Tensor | None = None,
    scale: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None, torch.Tensor | None]:
    """The recurrence, token by token; state [slots, HV, V, K] in place; third result: states at 64-token starts."""
    assert initial_state_indices is not None
    qf, kf, vf = _prepare(q, k, v, use_qk_l2norm_in_kernel, scale)
    gf, bf = g[0].float(), beta[0].float()
    out = torch.empty(vf.shape)
    bounds = cu_seqlens.tolist()
    chunks = []
    for b, slot in enumerate(initial_state_indices.tolist()):
        state = initial_state[slot].float()
        for t in range(bounds[b], bounds[b + 1]):
            if (t - bounds[b]) % 64 == 0:
                chunks.append(state)
            state, out[t] = _step(state, qf[t], kf[t], vf[t], gf[t], bf[t])
        initial_state[slot] = state.to(initial_state.dtype)
    states = torch.stack(chunks)[None].to(q.dtype) if chunks else None
    return out[None].to(q.dtype), None, states


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Decode and verify: one row after the other, each from its parent's state where parents are given."""
    heads = v.shape[2]
    qf, kf, vf = _prepare(q, k, v, use_qk_l2norm_in_kernel, None)
    rows = q.shape[1]
    decay, strength = fused_gdn_gating_cpu(
        A_log, a.reshape(rows, heads), b.reshape(rows, heads), dt_bias, softplus_beta, softplus_threshold
    )
    g, beta = decay[0], strength[0]
    bounds, slots = cu_seqlens.tolist(), initial_state_indices.tolist()
    out = torch.empty(rows, heads, v.shape[3])
    for n in range(len(bounds) - 1):
        state = initial_state_source[slots[n]].float()
        parents = None if retrieve_parent_token is None else retrieve_parent_token[n].tolist()
        history: list[torch.Tensor] = []
        for step, t in enumerate(range(bounds[n], bounds[n + 1])):
            if parents is not None and step > 0:
                state = history[parents[step]]
            state, out[t] = _step(state, qf[t], kf[t], vf[t], g[t], beta[t])
            history.append(state)
        if intermediate_states_buffer is not None and intermediate_state_indices is not None and history:
            row = int(intermediate_state_indices[n])
            intermediate_states_buffer[row, : len(history)] = torch.stack(history).to(intermediate_states_buffer.dtype)
        if not disable_state_update and history:
            initial_state_source[slots[n]] = state.to(initial_state_source.dtype)
    return out[None].to(q.dtype)
