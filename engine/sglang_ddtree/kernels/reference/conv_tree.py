"""The short causal convolution of a linear-attention layer, along tree paths."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...tables import TreeTables


def conv_tree(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    slots: torch.Tensor,
    tables: TreeTables,
    activation: str | None = "silu",
) -> torch.Tensor:
    """x [bs, T, C] raw inputs; conv_state [n_slots, C, W-1] (oldest first, only read); weight [C, W]; slots [bs].

    Row i sees itself, its W-1 nearest ancestors and, above the root, the newest entries of the conv state.
    Returns [bs, T, C] in x's dtype; x and conv_state stay as they are.  A negative slot gives 0.
    """
    window = tree_windows(x, conv_state, slots, tables)
    y = (window * weight.float()[None, None]).sum(-1)
    if bias is not None:
        y = y + bias.float()
    if activation in ("silu", "swish"):
        y = F.silu(y)
    elif activation is not None:
        raise ValueError(f"conv_tree knows the activations silu and None, got {activation!r}.")
    return torch.where((slots >= 0)[:, None, None], y, 0.0).to(x.dtype)


def tree_windows(x: torch.Tensor, conv_state: torch.Tensor, slots: torch.Tensor, tables: TreeTables) -> torch.Tensor:
    """The W inputs each row's convolution reads, oldest first: [bs, T, C, W] float32."""
    bs, width, channels = x.shape
    taps = conv_state.shape[2] + 1
    before = conv_state[slots.clamp(min=0).long()].float()
    ancestors = tables.anc[:, :, : taps - 1].long()
    if ancestors.shape[2] < taps - 1:  # trees shallower than the window
        ancestors = F.pad(ancestors, (0, taps - 1 - ancestors.shape[2]), value=-1)
    depth = (tables.anc >= 0).sum(-1)
    columns = []
    for back in range(taps - 1, 0, -1):
        row = ancestors[:, :, back - 1]
        inside = x.float().gather(1, row.clamp(min=0)[..., None].expand(bs, width, channels))
        # `back - depth` steps above the root: 1 is the newest entry of the conv state.
        above = (taps - 1 - (back - depth)).clamp(0, taps - 2)
        outside = before.transpose(1, 2).gather(1, above[..., None].expand(bs, width, channels))
        columns.append(torch.where((row >= 0)[..., None], inside, outside))
    columns.append(x.float())
    return torch.stack(columns, dim=-1)
