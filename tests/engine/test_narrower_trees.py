"""What the walk through one tree says about narrower ones, and what the spine guarantee promises."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ddtree.entry_order import entry_order
from sglang_ddtree.kernels.reference.tree_build import tree_build
from sglang_ddtree.kernels.reference.walk import walk
from sglang_ddtree.metrics import chain_lengths
from sglang_ddtree.tables import TreeTables
from trees import marginals

settings.register_profile("engine", max_examples=40, deadline=None)
settings.load_profile("engine")

SHAPES = st.tuples(st.integers(2, 15), st.integers(2, 12))
# How often the target agrees with the candidate of each rank; what is left over agrees with none.
AGREEMENT = st.sampled_from([(0.8, 0.1), (0.5, 0.3), (0.2, 0.5), (0.0, 0.6), (1.0, 0.0)])


def node_tokens(tables: TreeTables, target: dict[tuple[int, ...], int]) -> torch.Tensor:
    """The target's token after every row: a function of the tokens on the way to it, whatever the tree."""
    rows = torch.full_like(tables.tok, -1)
    prefix: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(int(tables.count[0])):
        if row:
            prefix[row] = (*prefix[int(tables.par[0, row])], int(tables.tok[0, row]))
        rows[0, row] = target.get(prefix[row], -1)
    return rows


def a_target(
    generator: torch.Generator, levels: int, candidates: int, agreement: tuple[float, float]
) -> dict[tuple[int, ...], int]:
    """The target's text as tokens of the drafter (depth * 1000 + rank), ended by one that the drafter never proposes."""
    text: list[int] = []
    for depth in range(1, levels + 1):
        draw = float(torch.rand((), generator=generator))
        if draw < agreement[0]:
            rank = 0
        elif draw < sum(agreement):
            rank = int(torch.randint(1, candidates, (), generator=generator))
        else:
            break
        text.append(1000 * depth + rank)
    return {tuple(text[:n]): token for n, token in enumerate([*text, -1])}


def walked(logp: torch.Tensor, ids: torch.Tensor, nodes: int, spine: int, penalty: float, target: dict) -> tuple:
    tables = tree_build(logp, ids, nodes, spine, penalty)
    path, commit_lens, _, _ = walk(node_tokens(tables, target), tables)
    return tables, path, commit_lens


def proposal(seed: int, shape: tuple[int, int], ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    levels, candidates = shape
    logp = torch.from_numpy(marginals(seed, levels, candidates, 1.5, ties))[None]
    ids = (torch.arange(1, levels + 1)[:, None] * 1000 + torch.arange(candidates)[None])[None]
    return logp, ids


@given(st.integers(0, 10**6), SHAPES, AGREEMENT, st.booleans(), st.data())
def test_a_walk_tells_what_every_narrower_tree_accepts(seed, shape, agreement, ties, data):
    spine = data.draw(st.sampled_from([0, 1, shape[0] // 2, shape[0]]))
    penalty = data.draw(st.sampled_from([0.0, 0.7]))
    logp, ids = proposal(seed, shape, ties)
    target = a_target(torch.Generator().manual_seed(seed), *shape, agreement)
    widest = data.draw(st.integers(shape[0], 64))
    row = entry_order(*walked(logp, ids, widest, spine, penalty, target), spine)[0].tolist()
    order, chain, in_tree = row[:-2], row[-2], row[-1]
    for nodes in {shape[0], (shape[0] + widest) // 2, widest}:
        tables, path, commit_lens = walked(logp, ids, nodes, spine, penalty, target)
        assert sum(1 <= o <= nodes for o in order) == int(commit_lens[0]) - 1
        if nodes == widest:
            assert chain == int(chain_lengths(path, commit_lens, tables)[0]) - 1
    whole_chain = walked(logp, ids, shape[0], shape[0], 0.0, target)[2]
    if in_tree == shape[0] or sum(o > 0 for o in order) != chain or chain < in_tree:
        assert chain == int(whole_chain[0]) - 1  # the walk saw where the chain ends


@given(st.integers(0, 10**6), SHAPES, AGREEMENT, st.booleans(), st.integers(1, 60), st.sampled_from([0.0, 1.5]))
def test_with_the_whole_spine_no_step_accepts_less_than_the_chain(seed, shape, agreement, ties, more, penalty):
    levels = shape[0]
    logp, ids = proposal(seed, shape, ties)
    target = a_target(torch.Generator().manual_seed(seed), *shape, agreement)
    chain = walked(logp, ids, levels, levels, 0.0, target)[2]
    tree = walked(logp, ids, levels + more, levels, penalty, target)[2]
    assert int(tree[0]) >= int(chain[0])


def test_without_the_spine_a_step_can_accept_less_than_the_chain():
    """The negative control: what the guarantee is for."""
    short = 0
    for seed in range(20):
        logp, ids = proposal(seed, (15, 8), False)
        target = {(*(1000 * d for d in range(1, n + 1)),): 1000 * (n + 1) for n in range(15)}
        chain, tree = (walked(logp, ids, nodes, spine, 0.0, target)[2] for nodes, spine in ((15, 15), (16, 0)))
        short += int(tree[0]) < int(chain[0])
    assert short > 10
