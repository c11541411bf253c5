"""The builder against a brute-force best-first search on whatever marginals hypothesis thinks of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ddtree.kernels.tree_build import tree_build
from sglang_ddtree.kernels.walk import walk


def brute_force(logp: np.ndarray, budget: int) -> list[float]:
    """Scores of the ``budget`` best rank vectors of any length, summed left to right in float32."""
    scores: list[float] = []
    level = [np.float32(0)]
    for row in logp:
        level = [np.float32(score + value) for score in level for value in row if np.isfinite(value)]
        level = sorted(level, reverse=True)[:budget]  # the best of a depth descend from the best of the one before
        scores += level
    return sorted((float(score) for score in scores), reverse=True)[:budget]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    levels=st.integers(1, 6),
    k=st.integers(1, 6),
    budget=st.integers(1, 24),
    step=st.sampled_from([0.0, 0.5]),
)
def test_scores_equal_brute_force(seed: int, levels: int, k: int, budget: int, step: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, levels, 12, generator=generator)
    if step:  # many exact ties
        logits = (logits / step).round() * step
    logp, ids = logits.log_softmax(-1).topk(k, -1)
    tables = tree_build(logp.contiguous(), ids.contiguous(), budget)
    used = int(tables.count[0])
    got = sorted(tables.score[0, 1:used].tolist(), reverse=True)
    assert got == brute_force(logp[0].numpy(), budget)


@pytest.mark.parametrize("budget", [16, 63])
def test_with_a_full_spine_the_tree_never_accepts_less_than_the_chain(budget: int) -> None:
    generator = torch.Generator().manual_seed(3)
    logp, ids = (torch.randn(8, 15, 64, generator=generator) * 0.3).log_softmax(-1).topk(16, -1)
    tables = tree_build(logp.contiguous(), ids.contiguous(), budget, spine_depth=15)
    target = torch.randint(0, 64, (8, budget + 1), generator=generator)
    for b in range(8):  # the target follows the chain for b * 2 tokens
        row = 0
        for _ in range(2 * b):
            row = int(tables.first_child[b, row])
            target[b, int(tables.par[b, row])] = tables.tok[b, row]
    chain = torch.empty(8, dtype=torch.int32)
    _, lengths, _, _ = walk(target, tables, chain_lens=chain)
    assert (chain >= torch.arange(8) * 2 + 1).all()
    assert (lengths >= chain).all()


def test_a_broken_draft_leaves_only_the_root() -> None:
    logp = torch.full((2, 15, 8), -torch.inf)
    tables = tree_build(logp, torch.zeros((2, 15, 8), dtype=torch.int64), 31)
    assert tables.count.tolist() == [1, 1]
    path, lengths, bonus, _ = walk(torch.full((2, 32), 7), tables)
    assert lengths.tolist() == [1, 1]
    assert bonus.tolist() == [7, 7]
    assert not path.any()


@pytest.mark.parametrize("budget", [0, 1025])
def test_an_impossible_budget_is_named(budget: int) -> None:
    with pytest.raises(ValueError, match=str(budget)):
        tree_build(torch.zeros((1, 2, 2)), torch.zeros((1, 2, 2), dtype=torch.int64), budget)
