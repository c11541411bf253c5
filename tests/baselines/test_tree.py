"""The tree equals brute force and the textbook heap, whatever the marginals."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from baselines.tree import TreePolicy, best_first, build_tree, chain_length, entry_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def marginals(depth: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted log-probabilities [depth, width] and distinct ids."""
    generator = np.random.default_rng(seed)
    rows = np.log(generator.dirichlet(np.full(width + 3, 0.4), depth)[:, :width].clip(1e-9))
    ids = np.stack([generator.permutation(1000)[:width] for _ in range(depth)])
    return -np.sort(-rows, 1).astype(np.float32), ids


def all_paths(log_probs: np.ndarray) -> list[tuple[float, tuple[int, ...]]]:
    depth, width = log_probs.shape
    paths = [p for n in range(1, depth + 1) for p in itertools.product(range(width), repeat=n)]
    return sorted(((float(sum(log_probs[d, r] for d, r in enumerate(p))), p) for p in paths), reverse=True)


def official_heap(log_probs: np.ndarray, budget: int) -> set[tuple[int, ...]]:
    """The published algorithm: a heap of rank tuples that pushes the next sibling and the first child."""
    taken: set[tuple[int, ...]] = set()
    depth, width = log_probs.shape
    heap = [(-float(log_probs[0, 0]), (0,))]
    while heap and len(taken) < budget:
        score, ranks = heapq.heappop(heap)
        taken.add(ranks)
        level, rank = len(ranks) - 1, ranks[-1]
        if rank + 1 < width:
            sibling = score + float(log_probs[level, rank]) - float(log_probs[level, rank + 1])
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1)))
        if level + 1 < depth:
            heapq.heappush(heap, (score - float(log_probs[level + 1, 0]), (*ranks, 0)))
    return taken


def rank_paths(log_probs: np.ndarray, budget: int, policy: TreePolicy) -> set[tuple[int, ...]]:
    entries = best_first(log_probs, budget, policy)
    paths: list[tuple[int, ...]] = [()]
    paths += [() for _ in entries[1:]]
    for number, entry in enumerate(entries[1:], 1):
        paths[number] = (*paths[entry.parent], entry.rank)
    return set(paths[1:])


@pytest.mark.parametrize("seed", range(12))
def test_trees_equal_brute_force(seed: int) -> None:
    log_probs, _ = marginals(1 + seed % 4, 1 + seed % 5, seed)
    ordered = all_paths(log_probs)
    for budget in (1, 3, 7, 20, 1000):
        got = rank_paths(log_probs, budget, TreePolicy())
        assert len(got) == min(budget, len(ordered))
        scores = sorted((sum(float(log_probs[d, r]) for d, r in enumerate(p)) for p in got), reverse=True)
        np.testing.assert_allclose(scores, [s for s, _ in ordered[: len(got)]], atol=1e-5)


@pytest.mark.parametrize("budget", [1, 15, 16, 22, 64, 256])
def test_trees_equal_the_published_heap(budget: int) -> None:
    for seed in range(20):
        log_probs, _ = marginals(15, 32, seed)
        assert rank_paths(log_probs, budget, TreePolicy()) == official_heap(log_probs, budget)


def test_a_smaller_tree_is_the_beginning_of_a_larger_one() -> None:
    log_probs, _ = marginals(15, 32, 3)
    for policy in (TreePolicy(), TreePolicy(8, 4, 1.5)):
        large = best_first(log_probs, 200, policy)
        assert best_first(log_probs, 20, policy) == large[:21]


def test_spine_and_penalty() -> None:
    log_probs, _ = marginals(15, 8, 5)
    spine = {(0,) * n for n in range(1, 11)}
    assert spine <= rank_paths(log_probs, 12, TreePolicy(spine_depth=10))
    chain = rank_paths(log_probs, 30, TreePolicy(off_spine_penalty=1e6))
    assert {p for p in chain if any(p[:-1])} == set()
    assert len(rank_paths(log_probs, 15, TreePolicy(k=1))) == 15


finite = hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-20, 0, width=32))


@settings(max_examples=60, deadline=None)
@given(rows=finite, budget=st.integers(1, 60), ties=st.booleans())
def test_walking_accepts_what_lies_in_the_tree(rows: np.ndarray, budget: int, ties: bool) -> None:
    log_probs = -np.sort(-(np.round(rows) if ties else rows), 1)
    ids = np.arange(log_probs.size).reshape(log_probs.shape)
    tree = build_tree(log_probs, ids, budget, TreePolicy())
    assert len(tree) == 1 + min(budget, sum(log_probs.shape[1] ** n for n in range(1, len(ids) + 1)))
    assert all(tree.parent[row] < row for row in range(len(tree)))
    for row in range(len(tree)):
        path = tree.walk([*tree.tokens_to(row), -5])
        assert path[-1] == row
        numbers = entry_numbers(best_first(log_probs, budget, TreePolicy()), ids, tree.tokens_to(row))
        assert len(numbers) == tree.depth[row]
        assert numbers == sorted(numbers)


def test_chain_length() -> None:
    assert chain_length([1, 2, 3], [1, 2, 4]) == 2
    assert chain_length([1], [2]) == 0
    assert chain_length([1, 2], [1]) == 1
