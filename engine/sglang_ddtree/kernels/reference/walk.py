"""Acceptance: follow the target's own tokens through the tree."""

from __future__ import annotations

import torch

from ...tables import TreeTables


def walk(target_tok: torch.Tensor, tables: TreeTables) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """target_tok [bs, T] int64: the token the target chose after each row (its arg-max, or one sample).

    From the root the walk goes to the child whose token is the target's token at the current row, until
    there is none.  Returns, with block = L + 1:
      path        [bs, block] int64  rows visited; entries past the end repeat the last row
      commit_lens [bs] int32         rows visited (the root included) = tokens produced
      bonus       [bs] int64         the target's token at the last row
      out_tokens  [bs, block] int64  target tokens along the path, then 0
    """
    bs, width = target_tok.shape
    block = tables.max_depth + 1
    device = target_tok.device
    rows = torch.arange(width, device=device)[None]
    current = torch.zeros((bs, 1), dtype=torch.int64, device=device)
    alive = torch.ones((bs, 1), dtype=torch.bool, device=device)
    path = torch.zeros((bs, block), dtype=torch.int64, device=device)
    out_tokens = torch.zeros((bs, block), dtype=torch.int64, device=device)
    commit_lens = torch.zeros((bs, 1), dtype=torch.int32, device=device)
    bonus = torch.zeros((bs, 1), dtype=torch.int64, device=device)
    for step in range(block):
        path[:, step : step + 1] = current
        wanted = target_tok.gather(1, current)
        out_tokens[:, step : step + 1] = torch.where(alive, wanted, 0)
        bonus = torch.where(alive, wanted, bonus)
        commit_lens += alive.int()
        hit = (tables.par == current) & (tables.tok == wanted) & (rows > 0)
        row = hit.int().argmax(dim=1, keepdim=True)
        alive = alive & hit.any(dim=1, keepdim=True)
        current = torch.where(alive, row, current)
    return path, commit_lens.view(-1), bonus.view(-1), out_tokens
