"""Tree building, mask, walk and compaction against brute force."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ddtree.kernels.reference.compact_kv import compact_kv
from sglang_ddtree.kernels.reference.topk_lse import topk_lse
from sglang_ddtree.kernels.reference.tree_build import tree_build
from sglang_ddtree.kernels.reference.tree_mask import tree_mask
from sglang_ddtree.kernels.reference.walk import walk
from sglang_ddtree.metrics import chain_lengths
from sglang_ddtree.tables import TreeTables
from trees import best_by_enumeration, best_by_levels, marginals, paths_of, rows_above, score

settings.register_profile("engine", max_examples=60, deadline=None)
settings.load_profile("engine")

BUDGETS = st.one_of(st.integers(1, 64), st.sampled_from([127, 128, 255, 256, 512, 1024]))
SHAPES = st.tuples(st.integers(1, 15), st.integers(1, 24))


def build(logp: np.ndarray, budget: int, spine: int = 0, penalty: float = 0.0) -> TreeTables:
    """One tree whose token at depth d and rank r is 1000 * d + r."""
    levels, candidates = logp.shape
    ids = torch.arange(1, levels + 1)[:, None] * 1000 + torch.arange(candidates)[None]
    return tree_build(torch.from_numpy(logp)[None], ids[None], budget, spine, penalty)


def scores_of(tables: TreeTables, logp: np.ndarray, penalty: float = 0.0) -> list[np.float32]:
    return sorted((score(logp, p, penalty) for p in paths_of(tables, 0)[1:]), reverse=True)


@given(st.integers(0, 10**6), SHAPES, BUDGETS, st.sampled_from([0.3, 1.0, 3.0]), st.booleans())
def test_tree_is_the_best_of_its_size(seed, shape, budget, sharpness, ties):
    logp = marginals(seed, *shape, sharpness, ties)
    tables = build(logp, budget)
    assert scores_of(tables, logp) == best_by_levels(logp, budget)


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 60), st.integers(0, 5),
    st.sampled_from([0.0, 0.25, 2.0]), st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_spine_and_penalty_against_enumeration(seed, levels, candidates, budget, spine, penalty, ties, cut):
    logp = marginals(seed, levels, candidates, 1.0, ties)
    if cut:  # some candidates are impossible
        logp[np.random.default_rng(seed).integers(0, levels), -min(cut, candidates) :] = -np.inf
    tables = build(logp, budget, spine, penalty)
    assert scores_of(tables, logp, penalty) == best_by_enumeration(logp, budget, spine, penalty)
    chain = {(0,) * d for d in range(1, min(spine, levels, budget) + 1)}
    assert {p for p in chain if score(logp, p) > -np.inf} <= set(paths_of(tables, 0))


@given(st.integers(0, 10**6), SHAPES, BUDGETS, st.booleans())
def test_tables_agree_with_each_other(seed, shape, budget, ties):
    logp = marginals(seed, *shape, 1.0, ties)
    tables = build(logp, budget)
    n, width = int(tables.count[0]), budget + 1
    par, dep = tables.par[0].tolist(), tables.dep[0].tolist()
    paths = paths_of(tables, 0)
    assert par[0] == -1
    assert dep[:n] == [len(p) for p in paths]
    assert all(par[i] < i for i in range(1, n))
    assert paths == sorted(paths, key=lambda p: (len(p), -score(logp, p)))  # stable: ties keep their order
    for row in range(2, n):
        same_parent = [i for i in range(1, row) if par[i] == par[row]]
        assert [paths[i][-1] for i in same_parent] == list(range(paths[row][-1]))
    assert len(set(paths)) == n
    for path in paths[1:]:
        assert path[:-1] in paths
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths
    assert tables.tok[0, 1:n].tolist() == [1000 * len(p) + p[-1] for p in paths[1:]]
    assert tables.score[0, 1:n].tolist() == [float(score(logp, p)) for p in paths[1:]]
    offsets = tables.level_offsets[0].tolist()
    assert [offsets[d + 1] - offsets[d] for d in range(shape[0] + 1)] == [dep[:n].count(d) for d in range(shape[0] + 1)]
    # padding
    assert par[n:] == [-1] * (width - n)
    assert dep[n:] == [1] * (width - n)
    assert (tables.anc[0, n:] == -1).all()
    for row in range(n):
        chain = rows_above(tables, 0, row)
        assert [a for a in tables.anc[0, row].tolist() if a >= 0] == chain[-2::-1]
        children, child = [], int(tables.first_child[0, row])
        while child >= 0:
            children.append(child)
            child = int(tables.next_sibling[0, child])
        assert children == [i for i in range(1, n) if par[i] == row]


@given(st.integers(0, 10**6), SHAPES, st.integers(1, 80))
def test_mask_shows_ancestors_and_self(seed, shape, budget):
    tables = build(marginals(seed, *shape, 1.0, False), budget)
    mask = tree_mask(tables)[0]
    for row in range(budget + 1):
        expected = rows_above(tables, 0, row) if row < int(tables.count[0]) else [row]
        assert mask[row].nonzero().view(-1).tolist() == expected


def loop_walk(tables: TreeTables, b: int, target: list[int]) -> list[int]:
    """The definition, row by row."""
    par, tok, n = tables.par[b].tolist(), tables.tok[b].tolist(), int(tables.count[b])
    path = [0]
    while True:
        hits = [i for i in range(1, n) if par[i] == path[-1] and tok[i] == target[path[-1]]]
        if not hits:
            return path
        path.append(hits[0])


@given(st.integers(0, 10**6), SHAPES, st.integers(1, 80), st.floats(0, 1))
def test_walk_follows_the_target(seed, shape, budget, share):
    logp = np.stack([marginals(seed + i, *shape, 1.0, False) for i in range(3)])
    ids = torch.arange(1, shape[0] + 1)[:, None] * 1000 + torch.arange(shape[1])[None]
    tables = tree_build(torch.from_numpy(logp), ids.expand(3, -1, -1), budget)
    rng = np.random.default_rng(seed)
    target = torch.zeros_like(tables.tok)  # token 0 is also the padding's token: it must not match
    for b in range(3):
        for row in range(budget + 1):
            children = (tables.par[b] == row).nonzero().view(-1).tolist()
            if children and rng.random() < share:
                target[b, row] = tables.tok[b, int(rng.choice(children))]
    path, commit_lens, bonus, out_tokens = walk(target, tables)
    chain = chain_lengths(path, commit_lens, tables)
    for b in range(3):
        expected = loop_walk(tables, b, target[b].tolist())
        n = int(commit_lens[b])
        assert path[b, :n].tolist() == expected
        assert (path[b, n:] == expected[-1]).all()
        assert out_tokens[b, :n].tolist() == [int(target[b, i]) for i in expected]
        assert (out_tokens[b, n:] == 0).all()
        assert int(bonus[b]) == int(target[b, expected[-1]])
        ranks = [int(tables.rank[b, i]) for i in expected[1:]]
        assert int(chain[b]) == 1 + next((i for i, r in enumerate(ranks) if r), len(ranks))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 16), st.integers(0, 60))
def test_compaction_reads_before_it_writes(seed, bs, block, extra):
    rng = np.random.default_rng(seed)
    width, slots = block + extra, 400
    loc = torch.from_numpy(rng.permutation(slots)[: bs * width].reshape(bs, width))
    path = torch.zeros(bs, block, dtype=torch.int64)
    commit_lens = torch.from_numpy(rng.integers(1, block + 1, bs)).int()
    for b, n in enumerate(commit_lens.tolist()):  # increasing rows, as a walk gives them; often path[d] = d + 1
        path[b, 1:n] = torch.from_numpy(np.sort(rng.choice(np.arange(1, width), n - 1, replace=False)))
    buffers = [torch.randn(slots, 2, 3), torch.randn(slots, 1)]
    before = [buffer.clone() for buffer in buffers]
    moved = compact_kv(buffers, loc, path, commit_lens)
    expected = [buffer.clone() for buffer in before]
    for b, n in enumerate(commit_lens.tolist()):
        for d in range(n):
            for new, old in zip(expected, before, strict=True):
                new[loc[b, d]] = old[loc[b, path[b, d]]]
    assert all(torch.equal(x, y) for x, y in zip(buffers, expected, strict=True))
    assert moved == sum(int(path[b, d]) != d for b, n in enumerate(commit_lens.tolist()) for d in range(n))


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 60), st.booleans(), st.booleans())
def test_topk_orders_ties_by_id(seed, rows, vocabulary, ties, invalid):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    if ties:
        logits = logits.round()
    if invalid:
        logits[0, 0] = float("nan")
    k = 1 + seed % vocabulary
    logp, ids = topk_lse(logits, k)
    for row in range(rows):
        if invalid and row == 0:
            assert (logp[0] == -torch.inf).all()
            continue
        order = sorted(range(vocabulary), key=lambda i: (-float(logits[row, i]), i))[:k]
        assert ids[row].tolist() == order
        torch.testing.assert_close(logp[row], torch.log_softmax(logits[row].double(), -1)[order].float())
