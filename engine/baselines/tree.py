"""The best-first tree over a draft's per-position candidates, and the walk through it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class TreePolicy:
    """k: candidates per position at most (the budget bounds it too); spine_depth: how much of the chain is
    always in the tree; off_spine_penalty: nats taken from children of nodes off the chain."""

    k: int = 32
    spine_depth: int = 0
    off_spine_penalty: float = 0.0


@dataclass(frozen=True)
class Tree:
    """Rows in breadth-first order; row 0 is the root. ``parent``, ``depth``, ``token`` and ``score`` per row."""

    parent: list[int]
    depth: list[int]
    token: list[int]
    score: list[float]

    def __len__(self) -> int:
        return len(self.parent)

    def walk(self, continuation: Sequence[int]) -> list[int]:
        """Rows of the longest path from the root that spells a prefix of ``continuation``, the root included."""
        children: dict[tuple[int, int], int] = {(self.parent[row], self.token[row]): row for row in range(1, len(self))}
        path = [0]
        for token in continuation:
            row = children.get((path[-1], token))
            if row is None:
                break
            path.append(row)
        return path

    def tokens_to(self, row: int) -> list[int]:
        """The tokens from below the root down to ``row``."""
        spelled: list[int] = []
        while row > 0:
            spelled.append(self.token[row])
            row = self.parent[row]
        return spelled[::-1]


def chain_length(proposed: Sequence[int], continuation: Sequence[int]) -> int:
    """How many proposals of a chain the continuation confirms."""
    count = 0
    for ours, wanted in zip(proposed, continuation, strict=False):
        if ours != wanted:
            break
        count += 1
    return count


class Entry(NamedTuple):
    """A node as the search took it; ``parent`` is the number of an earlier entry, 0 is the root."""

    parent: int
    depth: int
    rank: int
    score: float
    on_spine: bool


def best_first(log_probs: np.ndarray, budget: int, policy: TreePolicy) -> list[Entry]:
    """The root and the ``budget`` best paths, in the order in which they enter; log_probs [depth, candidates].

    Scores are sums in float32. Ties go to the smaller depth, then to the parent taken earlier, then to the
    smaller rank. The first b entries are the tree of budget b, for every b from ``policy.spine_depth`` up.
    """
    width = min(policy.k, budget, log_probs.shape[1])
    # Sums of two float32 in double precision, rounded once, are the float32 sums.
    logp: list[list[float]] = log_probs[:, :width].astype(np.float32).tolist()
    penalty = float(np.float32(policy.off_spine_penalty))
    entries = [Entry(-1, 0, -1, 0.0, True)]
    frontier: list[tuple[float, int, int, int]] = []

    def child_score(parent: Entry, rank: int) -> float:
        value = float(np.float32(parent.score + logp[parent.depth][rank]))
        return value if parent.on_spine or not penalty else float(np.float32(value - penalty))

    def offer(number: int, rank: int) -> None:
        parent = entries[number]
        if rank < width and parent.depth < len(logp):
            score = child_score(parent, rank)
            if score > -math.inf:
                heapq.heappush(frontier, (-score, parent.depth + 1, number, rank))

    def take(number: int, rank: int, score: float) -> None:
        parent = entries[number]
        entries.append(Entry(number, parent.depth + 1, rank, score, parent.on_spine and rank == 0))
        offer(number, rank + 1)
        offer(len(entries) - 1, 0)

    offer(0, 0)
    for _ in range(min(policy.spine_depth, len(logp), budget)):
        tip = len(entries) - 1
        frontier[:] = [item for item in frontier if item[2:] != (tip, 0)]
        heapq.heapify(frontier)
        take(tip, 0, child_score(entries[tip], 0))
    while frontier and len(entries) <= budget:
        score, _, number, rank = heapq.heappop(frontier)
        take(number, rank, -score)
    return entries


def entry_numbers(entries: list[Entry], ids: np.ndarray, continuation: Sequence[int]) -> list[int]:
    """When each node of the longest path that spells ``continuation`` entered: node d is in trees of that budget up."""
    number_of = {(entry.parent, entry.rank): number for number, entry in enumerate(entries)}
    found, current = [], 0
    for depth, token in enumerate(continuation[: len(ids)]):
        ranks = np.flatnonzero(ids[depth] == token)
        current = number_of.get((current, int(ranks[0])), 0) if len(ranks) else 0
        if current == 0:
            break
        found.append(current)
    return found


def build_tree(log_probs: np.ndarray, ids: np.ndarray, budget: int, policy: TreePolicy) -> Tree:
    """The tree of ``budget`` nodes with tokens, in breadth-first rows; log_probs, ids [depth, candidates], best first."""
    entries = best_first(log_probs, budget, policy)
    order = sorted(range(len(entries)), key=lambda number: entries[number].depth)
    row_of = {number: row for row, number in enumerate(order)} | {-1: -1}
    picked = [entries[number] for number in order]
    return Tree(
        parent=[row_of[entry.parent] for entry in picked],
        depth=[entry.depth for entry in picked],
        token=[-1] + [int(ids[entry.depth - 1, entry.rank]) for entry in picked[1:]],
        score=[float(entry.score) for entry in picked],
    )
