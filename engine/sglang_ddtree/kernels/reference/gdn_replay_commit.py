"""Advance the recurrent state along the accepted path, in the order a chain would have done it."""

from __future__ import annotations

import torch

from .gdn import gates, unit, write


def gdn_replay_commit(
    k: torch.Tensor,
    v: torch.Tensor,
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
) -> None:
    """Replays rows path[b, 0 .. commit_lens[b]-1] into state[slots[b]] (float32 arithmetic), in place.

    k [bs, T, H, K], v [bs, T, HV, V], a, b [bs, T, HV]: what the verify pass recorded for each row;
    state [n_slots, HV, V, K]; slots [bs] (negative: padding, skipped).  With tracking, the state after
    step track_steps[b] (-1 = none) is also stored in state[track_slots[b]].
    """
    group = v.shape[2] // k.shape[2]
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        current = state[slot].float()
        for step in range(int(commit_lens[i])):
            row = int(path[i, step])
            # One row at a time: over more rows PyTorch may sum or exponentiate in another order.
            g, beta = gates(a[i, row], b[i, row], a_log, dt_bias)
            key = unit(k[i, row]).repeat_interleave(group, 0)
            current = write(current, key, v[i, row].float(), g, beta)
            if track_slots is not None and track_steps is not None and int(track_steps[i]) == step:
                state[int(track_slots[i])] = current.to(state.dtype)
        state[slot] = current.to(state.dtype)
