"""Independent, slow forms of the tree and of the recurrences, for comparison with the ops."""

from __future__ import annotations

import itertools

import numpy as np
import torch

Ranks = tuple[int, ...]


def score(logp: np.ndarray, path: Ranks, penalty: float = 0.0) -> np.float32:
    """Float32 sum along a path of candidate ranks, in the order the builder must use."""
    total = np.float32(0)
    for depth, rank in enumerate(path):
        total = np.float32(total + logp[depth, rank])
        if any(path[:depth]):
            total = np.float32(total - np.float32(penalty))
    return total


def all_paths(levels: int, candidates: int) -> list[Ranks]:
    return [p for n in range(1, levels + 1) for p in itertools.product(range(candidates), repeat=n)]


def best_by_enumeration(logp: np.ndarray, budget: int, spine: int = 0, penalty: float = 0.0) -> list[np.float32]:
    """Descending scores of the forced spine and the best of every other path there is."""
    levels, candidates = logp.shape
    forced: list[Ranks] = []
    for depth in range(1, min(spine, levels, budget) + 1):
        if score(logp, (0,) * depth, penalty) == -np.inf:
            break
        forced.append((0,) * depth)
    rest = sorted((score(logp, p, penalty) for p in all_paths(levels, candidates) if p not in forced), reverse=True)
    chosen = [s for s in rest if s > -np.inf][: budget - len(forced)]
    return sorted([score(logp, p, penalty) for p in forced] + chosen, reverse=True)


def best_by_levels(logp: np.ndarray, budget: int) -> list[np.float32]:
    """Descending scores of the best tree, by keeping the best ``budget`` nodes of every level."""
    levels, candidates = logp.shape
    current: list[np.float32] = [np.float32(0)]
    found: list[np.float32] = []
    for depth in range(levels):
        children = [
            np.float32(parent + logp[depth, rank])
            for i, parent in enumerate(current)
            for rank in range(min(candidates, budget // (i + 1)))
        ]
        current = sorted((c for c in children if c > -np.inf), reverse=True)[:budget]
        found += current
    return sorted(found, reverse=True)[:budget]


def paths_of(tables: object, b: int) -> list[Ranks]:
    """Rank path of every row in use of tree b."""
    count, par, rank = int(tables.count[b]), tables.par[b].tolist(), tables.rank[b].tolist()
    paths: list[Ranks] = [()]
    for row in range(1, count):
        paths.append((*paths[par[row]], rank[row]))
    return paths


def rows_above(tables: object, b: int, row: int) -> list[int]:
    """Rows from the root to ``row``."""
    par, chain = tables.par[b].tolist(), []
    while row >= 0:
        chain.append(row)
        row = par[row]
    return chain[::-1]


def marginals(seed: int, levels: int, candidates: int, sharpness: float, ties: bool) -> np.ndarray:
    """[levels, candidates] descending log-probabilities of a random drafter."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(levels, candidates + 20)) * sharpness
    if ties:
        x = np.round(x * 2) / 2
    logp = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return -np.sort(-logp, axis=-1)[:, :candidates].astype(np.float32)


def delta_rule(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule over a chain: state [HV, V, K], q, k [n, HV, K], v [n, HV, V] -> outputs, last state."""
    out = []
    for t in range(k.shape[0]):
        state = state * g[t].exp()[:, None, None]
        u = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + torch.einsum("hv,hk->hvk", u, k[t])
        out.append(torch.einsum("hvk,hk->hv", state, q[t]))
    return torch.stack(out), state
