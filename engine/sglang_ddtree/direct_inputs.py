"""Recurrent blocks of a target in verify passes: kernels read the projections' outputs in place.

SGLang copies q, k, v next to each other, and a and b apart, before it calls the backend.  Where the projections lay them
side by side anyway (Qwen3.5 and 3.6) that is work for nothing, since the verify kernels take any row stride.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class DirectInputs:
    """The forward of one recurrent block, for verify passes only."""

    def __init__(self, block: Any, channels: int, heads: int, value_size: int) -> None:
        """channels: of q, k and v together; heads, value_size: the value heads and their size, all on this rank."""
        self.block, self.channels, self.heads, self.value_size = block, channels, heads, value_size
        self._own = block.forward

    def __call__(self, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """[rows, hidden] -> [rows, hidden], as the block's own method."""
        if not forward_batch.forward_mode.is_target_verify():
            return self._own(hidden_states, forward_batch)
        block = self.block
        qkvz, ba = block._forward_input_proj(hidden_states)
        mixed, gates = qkvz[:, : self.channels], qkvz[:, self.channels :]
        out = block.attn(forward_batch, mixed_qkv=mixed, a=ba[:, self.heads :], b=ba[:, : self.heads])
        rows = out.shape[1]
        out = block.norm(out.reshape(-1, self.value_size), gates[:rows].reshape(-1, self.value_size))
        return block.out_proj(out.view(rows, -1))[0]


def take_over(model: nn.Module) -> int:
    """Give every block of ``model`` that has the layout above the direct forward; how many have it."""
    found = 0
    for block in model.modules():
        layer = getattr(block, "attn", None)
        if layer is None or not hasattr(layer, "head_v_dim") or not _side_by_side(block, layer):
            continue
        channels = layer.q_dim + layer.k_dim + layer.v_dim
        block.forward = DirectInputs(block, channels, layer.num_v_heads, layer.head_v_dim)
        found += 1
    return found


def _side_by_side(block: Any, layer: Any) -> bool:
    """Whether the block's own splitting takes [q | k | v | z] and [b | a] apart, asked with numbered columns."""
    split = getattr(block, "fix_query_key_value_ordering", None)
    if split is None or not all(hasattr(block, name) for name in ("_forward_input_proj", "norm", "out_proj")):
        return False
    wide, heads = layer.q_dim + layer.k_dim + 2 * layer.v_dim, layer.num_v_heads
    parts = split(torch.arange(wide)[None], torch.arange(2 * heads)[None])
    if len(parts) != 6:
        return False
    q, k, v, z, b, a = (part.reshape(-1) for part in parts)
    return torch.equal(torch.cat((q, k, v, z)), torch.arange(wide)) and torch.equal(
        torch.cat((b, a)), torch.arange(2 * heads)
    )
