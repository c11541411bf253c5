"""Advance the convolution state along the accepted path."""

from __future__ import annotations

import torch


def conv_commit(
    x: torch.Tensor,
    path: torch.Tensor,
    commit_lens: torch.Tensor,
    conv_state: torch.Tensor,
    slots: torch.Tensor,
    track_slots: torch.Tensor | None = None,
    track_steps: torch.Tensor | None = None,
) -> None:
    """Shifts raw inputs x[b, path[b, 0 .. commit_lens[b]-1]] through conv_state[slots[b]], in place.

    x [bs, T, C]; conv_state [n_slots, C, W-1], oldest first; slots [bs] (negative: skipped).  With tracking, the
    window after step track_steps[b] (-1 = none) is also stored in conv_state[track_slots[b]].
    """
    keep = conv_state.shape[2]
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        n = int(commit_lens[i])
        history = torch.cat([conv_state[slot], x[i, path[i, :n]].T.to(conv_state.dtype)], dim=1)
        if track_slots is not None and track_steps is not None and 0 <= int(track_steps[i]) < n:
            end = keep + int(track_steps[i]) + 1
            conv_state[int(track_slots[i])] = history[:, end - keep : end]
        conv_state[slot] = history[:, -keep:]
