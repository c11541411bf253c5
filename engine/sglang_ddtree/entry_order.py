"""What a narrower tree would have accepted, read off the walk through a wider one.

Best-first search adds nodes in one order whatever the budget, so the tree of B' nodes is the first B' of them, and its
walk is the part of the wider tree's walk inside it.
"""

from __future__ import annotations

import torch

from .tables import TreeTables


def entry_order(tables: TreeTables, path: torch.Tensor, commit_lens: torch.Tensor, spine: int) -> torch.Tensor:
    """path [bs, block], commit_lens [bs] of a walk, spine = the forced chain -> [bs, L + 2] int64.

    Columns 0..L-1: when the accepted node of depth 1..L entered its tree (1 = first), 0 past the end of the walk: a tree
    of B nodes accepts those with 1 <= order <= B.  Column L: accepted nodes on the chain of best candidates.  Column L + 1:
    how many of that chain are in the tree, so whether a walk that reached its end says all about the chain.
    """
    bs, width = tables.tok.shape
    depth = tables.max_depth
    device = tables.tok.device
    rows = torch.arange(width, device=device)[None]
    levels = torch.arange(1, depth + 1, device=device)[None]
    used = (rows > 0) & (rows < tables.count[:, None])
    # The forced chain comes first: it is the first row of each level that it reaches.
    first = tables.level_offsets[:, 1 : depth + 1].long()
    forced_levels = (levels <= spine) & (first < tables.level_offsets[:, 2 : depth + 2])
    forced = torch.zeros((bs, width + 1), dtype=torch.bool, device=device)
    forced.scatter_(1, torch.where(forced_levels, first, width), True)
    forced = forced[:, :width]
    walked = path[:, 1:]
    mine = tables.score.gather(1, walked)[:, :, None]
    other = tables.score[:, None, :]
    # Ties enter by depth and then by order of entry, which is the order of the rows.
    earlier = (other > mine) | ((other == mine) & (rows[:, None, :] < walked[:, :, None]))
    before = (earlier & (used & ~forced)[:, None, :]).sum(-1) + forced.sum(-1, keepdim=True)
    order = torch.where(forced.gather(1, walked), levels, before + 1)
    order = torch.where(levels < commit_lens[:, None], order, 0)
    # A row is on the chain of best candidates when it and all its ancestors have rank 0: as many as its depth.
    best = (tables.rank == 0) & used
    above = tables.anc.long().clamp(min=0).view(bs, -1)
    best_above = (best.gather(1, above).view_as(tables.anc) & (tables.anc > 0)).sum(-1)
    on_chain = best & (best_above + 1 == tables.dep)
    accepted = on_chain.gather(1, walked) & (levels < commit_lens[:, None])
    return torch.cat([order, accepted.sum(1, keepdim=True), on_chain.sum(1, keepdim=True)], dim=1)
