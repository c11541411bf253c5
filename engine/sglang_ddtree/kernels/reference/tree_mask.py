"""Who may attend to whom inside a tree."""

from __future__ import annotations

import torch

from ...tables import TreeTables


def tree_mask(tables: TreeTables) -> torch.Tensor:
    """-> [bs, T, T] bool, True where row i may read row j: j is i itself or one of its ancestors."""
    bs, width, _ = tables.anc.shape
    mask = torch.eye(width, dtype=torch.bool, device=tables.anc.device).repeat(bs, 1, 1)
    ancestors = tables.anc.long()
    present = ancestors >= 0
    columns = torch.where(present, ancestors, torch.arange(width, device=ancestors.device)[None, :, None])
    return mask.scatter(2, columns, True)
