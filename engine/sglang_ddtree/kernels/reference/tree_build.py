"""The exact best-first tree from per-position marginals (DDTree, arXiv 2604.12989)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import torch

from ...tables import TreeTables


def tree_build(
    logp: torch.Tensor,
    ids: torch.Tensor,
    budget: int,
    spine_depth: int = 0,
    off_spine_penalty: float = 0.0,
) -> TreeTables:
    """logp [bs, L, K] float32 (descending along K), ids [bs, L, K] int64 -> tables of T = budget + 1 rows.

    A node at depth d with candidate rank r scores ``score(parent) + logp[d-1, r]``, minus
    ``off_spine_penalty`` (>= 0) when its parent is not on the spine (the chain of first candidates), all in
    float32 and in this order.  The tree holds the ``budget`` best nodes; ties go to the smaller depth, then
    to the parent found earlier, then to the smaller rank.  The first ``spine_depth`` nodes of the spine are
    in the tree whatever they score.  Candidates of -inf never enter.  The caller writes row 0's token.
    """
    bs, max_depth, _ = logp.shape
    tables = TreeTables.empty(bs, budget + 1, max_depth)
    host_logp = logp.detach().float().cpu().numpy()
    host_ids = ids.detach().cpu().numpy()
    for b in range(bs):
        search = _Search(host_logp[b], np.float32(off_spine_penalty))
        search.run(budget, spine_depth)
        _write(tables, b, search, host_ids[b])
    device = logp.device
    return TreeTables(**{name: tensor.to(device) for name, tensor in vars(tables).items()})


@dataclass
class _Search:
    """Best-first enumeration of one tree; nodes are numbered in the order in which they enter."""

    logp: np.ndarray
    penalty: np.float32
    parent: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])
    rank: list[int] = field(default_factory=lambda: [-1])
    score: list[np.float32] = field(default_factory=lambda: [np.float32(0)])
    on_spine: list[bool] = field(default_factory=lambda: [True])
    heap: list[tuple[float, int, int, int]] = field(default_factory=list)

    def run(self, budget: int, spine_depth: int) -> None:
        levels, _ = self.logp.shape
        self._offer(0, 0)
        for _ in range(min(spine_depth, levels, budget)):
            tip = len(self.parent) - 1
            if self._child_score(tip, 0) == -np.inf:
                break
            self.heap = [entry for entry in self.heap if entry[2:] != (tip, 0)]
            heapq.heapify(self.heap)
            self._take(tip, 0)
        while self.heap and len(self.parent) <= budget:
            _, _, parent, rank = heapq.heappop(self.heap)
            self._take(parent, rank)

    def _child_score(self, parent: int, rank: int) -> np.float32:
        value = np.float32(self.score[parent] + self.logp[self.depth[parent], rank])
        return value if self.on_spine[parent] else np.float32(value - self.penalty)

    def _offer(self, parent: int, rank: int) -> None:
        levels, candidates = self.logp.shape
        if rank < candidates and self.depth[parent] < levels:
            score = self._child_score(parent, rank)
            if score > -np.inf:
                heapq.heappush(self.heap, (-float(score), self.depth[parent] + 1, parent, rank))

    def _take(self, parent: int, rank: int) -> None:
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        self.rank.append(rank)
        self.score.append(self._child_score(parent, rank))
        self.on_spine.append(self.on_spine[parent] and rank == 0)
        self._offer(parent, rank + 1)
        self._offer(len(self.parent) - 1, 0)


def _breadth_first(search: _Search) -> list[int]:
    """Node numbers in row order: by depth, then by order of entry."""
    return sorted(range(len(search.depth)), key=lambda node: search.depth[node])


def _write(tables: TreeTables, b: int, search: _Search, ids: np.ndarray) -> None:
    max_depth = tables.max_depth
    last_rank = search.logp.shape[1] - 1
    order = _breadth_first(search)
    n = len(order)
    row_of = {node: row for row, node in enumerate(order)}
    row_of[-1] = -1
    par = [row_of[search.parent[node]] for node in order]
    dep = [search.depth[node] for node in order]
    rank = [search.rank[node] for node in order]
    first_child, next_sibling = [-1] * n, [-1] * n
    anc = [[-1] * max_depth for _ in range(n)]
    last_child = [-1] * n
    for row in range(1, n):
        p = par[row]
        if last_child[p] < 0:
            first_child[p] = row
        else:
            next_sibling[last_child[p]] = row
        last_child[p] = row
        anc[row] = [p, *anc[p][:-1]]
    tables.tok[b, 1:n] = torch.tensor(
        [int(ids[d - 1, r]) for d, r in zip(dep[1:], rank[1:], strict=True)], dtype=torch.int64
    )
    for name, column in (
        ("par", par), ("dep", dep), ("rank", rank), ("first_child", first_child), ("next_sibling", next_sibling),
    ):  # fmt: skip
        getattr(tables, name)[b, :n] = torch.tensor(column, dtype=torch.int32)
    tables.anc[b, :n] = torch.tensor(anc, dtype=torch.int32)
    tables.score[b, :n] = torch.tensor(np.array([search.score[node] for node in order], dtype=np.float32))
    per_level = np.bincount(dep, minlength=max_depth + 1)
    tables.level_offsets[b] = torch.tensor(np.concatenate([[0], np.cumsum(per_level)]), dtype=torch.int32)
    tables.count[b] = n
    # With a single candidate the caller asked for a chain: nothing was cut off.
    tables.truncated[b] = sum(r == last_rank for r in rank) if last_rank > 0 else 0
