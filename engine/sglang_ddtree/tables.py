"""The tree of one decode step as tensors: what the builder writes and every later op reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class TreeTables:
    """Trees of ``bs`` requests, each with T rows; row 0 is the root (the newest verified token).

    Rows are in breadth-first order: parents come before children, a depth is contiguous, and siblings keep
    their rank order.  A tree with fewer nodes than T-1 is padded at the end: padding rows have token 0,
    depth 1, parent -1 and no ancestors, so the mask shows them only themselves and no walk can reach them.

    Shapes and dtypes (L = greatest depth = block - 1):
      tok            [bs, T]    int64    token of each row; row 0 is written by the caller
      par            [bs, T]    int32    row of the parent, -1 for the root and padding
      dep            [bs, T]    int32    depth (root 0, padding 1)
      rank           [bs, T]    int32    rank among the drafter's candidates (root and padding -1)
      first_child    [bs, T]    int32    row of the best child, -1 = none
      next_sibling   [bs, T]    int32    row of the next sibling, -1 = none
      anc            [bs, T, L] int32    strict ancestors, nearest first, padded with -1
      level_offsets  [bs, L+2]  int32    rows of depth d are level_offsets[d] .. level_offsets[d+1]
      score          [bs, T]    float32  sum of log-probabilities (and penalties) along the path; root 0
      count          [bs]       int32    rows in use, root included
      truncated      [bs]       int32    nodes of the last candidate rank: a larger K might change the tree
    """

    tok: torch.Tensor
    par: torch.Tensor
    dep: torch.Tensor
    rank: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor
    anc: torch.Tensor
    level_offsets: torch.Tensor
    score: torch.Tensor
    count: torch.Tensor
    truncated: torch.Tensor

    @property
    def width(self) -> int:
        """T, the verify rows per request."""
        return int(self.tok.shape[1])

    @property
    def max_depth(self) -> int:
        """L, the greatest depth a node can have."""
        return int(self.anc.shape[2])

    @classmethod
    def empty(cls, bs: int, width: int, max_depth: int, device: torch.device | str = "cpu") -> TreeTables:
        """Tables of ``bs`` trees that hold only padding (the root's token included)."""

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        dep = full(1, bs, width)
        dep[:, 0] = 0
        level_offsets = full(1, bs, max_depth + 2)
        level_offsets[:, 0] = 0
        return cls(
            tok=full(0, bs, width, dtype=torch.int64),
            par=full(-1, bs, width),
            dep=dep,
            rank=full(-1, bs, width),
            first_child=full(-1, bs, width),
            next_sibling=full(-1, bs, width),
            anc=full(-1, bs, width, max_depth),
            level_offsets=level_offsets,
            score=full(0, bs, width, dtype=torch.float32),
            count=full(1, bs),
            truncated=full(0, bs),
        )
