"""Inputs and measures that the self-test's cases share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .kernels.reference.tree_build import tree_build
from .tables import TreeTables


@dataclass(frozen=True)
class Outcome:
    """What a case found: ``error`` must not exceed ``limit``; NaN never passes."""

    error: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class HybridShape:
    """Heads and head sizes of one Gated DeltaNet layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


class Random:
    """A seeded source of tensors on one device."""

    def __init__(self, seed: int, device: str) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device, dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator).to(self.device)

    def permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator).to(self.device)

    def marginals(
        self, bs: int, levels: int, k: int, *, sharp: float = 2.0, ties: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Descending log-probabilities [bs, levels, k] and token ids of a drafter with 256 tokens."""
        x = torch.randn(bs, levels, 256, generator=self.generator) * sharp
        if ties:
            x = x.round()
        values, ids = x.log_softmax(-1).topk(k, -1)
        return values.contiguous().to(self.device), ids.contiguous().to(self.device)

    def tree(self, bs: int, nodes: int, levels: int, *, spine: int = 0) -> TreeTables:
        """A random tree of the reference builder."""
        logp, ids = self.marginals(bs, levels, min(nodes, 16))
        return tree_build(logp, ids, nodes, spine)

    def targets(self, tables: TreeTables) -> torch.Tensor:
        """Target tokens that follow a random branch of the tree most of the time."""
        bs, width = tables.tok.shape
        target = torch.randint(0, 256, (bs, width), generator=self.generator)
        first, sibling, tok = tables.first_child.cpu(), tables.next_sibling.cpu(), tables.tok.cpu()
        for b in range(bs):
            for row in range(width):
                child = int(first[b, row])
                if child >= 0 and sibling[b, child] >= 0 and torch.rand((), generator=self.generator) < 0.4:
                    child = int(sibling[b, child])
                if child >= 0 and torch.rand((), generator=self.generator) < 0.85:
                    target[b, row] = tok[b, child]
        return target.to(self.device)


def deepest_path(tables: TreeTables) -> tuple[torch.Tensor, torch.Tensor]:
    """(path [bs, L+1] int64, commit_lens [bs] int32) from the root to a deepest row of each tree."""
    bs, block = tables.tok.shape[0], tables.max_depth + 1
    path = torch.zeros((bs, block), dtype=torch.int64)
    lengths = torch.ones((bs,), dtype=torch.int32)
    anc, dep = tables.anc.cpu(), tables.dep.cpu()
    for b in range(bs):
        used = int(tables.count[b])
        leaf = int(dep[b, :used].argmax())
        rows = [leaf, *[int(x) for x in anc[b, leaf] if x >= 0]][::-1]
        path[b, : len(rows)] = torch.tensor(rows)
        path[b, len(rows) :] = leaf
        lengths[b] = len(rows)
    device = tables.tok.device
    return path.to(device), lengths.to(device)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """An output that shows what was not written: NaN, or a value no op produces."""
    fill = float("nan") if dtype.is_floating_point else (255 if dtype == torch.uint8 else -987654)
    return torch.full(shape, fill, dtype=dtype, device=device)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want||."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30))


def differing(got: torch.Tensor, want: torch.Tensor) -> float:
    """How many entries differ."""
    return float((got != want).sum())
