"""Verify a tree the slow, sure way: one sequential pass of the target over every root-to-leaf path.

A recurrent layer sees each path exactly as it would see that text, so hybrid targets need no state handling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .target import TargetModel
from .tree import Tree

PATHS_PER_PASS = 32


def next_tokens(target: TargetModel, prefix: Sequence[int], tree: Tree) -> list[int]:
    """The target's greedy token behind every row; ``prefix`` ends with the root's token."""
    leaves = sorted(set(range(len(tree))) - set(tree.parent))
    found = [-1] * len(tree)
    for start in range(0, len(leaves), PATHS_PER_PASS):
        part = leaves[start : start + PATHS_PER_PASS]
        paths = [tree.tokens_to(leaf) for leaf in part]
        rows = torch.zeros(len(part), len(prefix) + max(map(len, paths)), dtype=torch.int64)
        for row, path in zip(rows, paths, strict=True):
            row[: len(prefix) + len(path)] = torch.tensor([*prefix, *path])
        answers = target.next_tokens(rows)
        for answer, leaf in zip(answers.tolist(), part, strict=True):
            row = leaf
            while row >= 0:
                found[row] = answer[len(prefix) - 1 + tree.depth[row]]
                row = tree.parent[row]
    return found


def accepted_path(target: TargetModel, prefix: Sequence[int], tree: Tree) -> list[int]:
    """Rows that a greedy verify of ``tree`` accepts, the root included."""
    answers = next_tokens(target, prefix, tree)
    children = {(tree.parent[row], tree.token[row]): row for row in range(1, len(tree))}
    path = [0]
    while (path[-1], answers[path[-1]]) in children:
        path.append(children[path[-1], answers[path[-1]]])
    return path
