"""The buffers of one decode step that live at fixed addresses, so that CUDA graphs can be replayed over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .kernels.ancestor_bits import WORD
from .tables import TreeTables


@dataclass
class WalkOutput:
    """What the walk of one step leaves; two of them take turns, because the host may still copy the older one."""

    path: torch.Tensor
    commit_lens: torch.Tensor
    bonus: torch.Tensor
    out_tokens: torch.Tensor
    new_lens: torch.Tensor


class StaticTree:
    """Tree tables, ancestor bits, positions and prefix lengths for up to ``max_bs`` requests."""

    def __init__(self, max_bs: int, width: int, max_depth: int, device: torch.device | str) -> None:
        self.max_bs, self.width, self.max_depth = max_bs, width, max_depth
        self.tables = TreeTables.empty(max_bs, width, max_depth, device)
        self.bits = torch.zeros((max_bs, width, -(-width // WORD)), dtype=torch.int64, device=device)
        self.positions = torch.zeros((max_bs, width), dtype=torch.int64, device=device)
        self.prefix = torch.zeros((max_bs,), dtype=torch.int64, device=device)
        self.first_rows = torch.arange(max_bs, device=device)[:, None] * width  # flat row of each request's root
        self.scratch = torch.empty((5 * max_bs * width,), dtype=torch.int32, device=device)
        # The walk's counters, and last the trees without a node, which a draft of NaN gives.
        self.counters = torch.zeros((5 + max_depth + 2,), dtype=torch.int64, device=device)
        self._views: dict[int, TreeTables] = {}
        self._outputs = [self._walk_output(device) for _ in range(2)]
        self._turn = 0
        self._last_bs = 0

    def _walk_output(self, device: torch.device | str) -> WalkOutput:
        def int64(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        bs, block = self.max_bs, self.max_depth + 1
        commit = torch.zeros((bs,), dtype=torch.int32, device=device)
        return WalkOutput(int64(bs, block), commit, int64(bs), int64(bs, block), int64(bs))

    def view(self, bs: int) -> TreeTables:
        """The tables of the first ``bs`` requests."""
        if bs not in self._views:
            self._views[bs] = TreeTables(**{name: x[:bs] for name, x in vars(self.tables).items()})
        return self._views[bs]

    def next_output(self, bs: int) -> WalkOutput:
        self._turn = 1 - self._turn
        return WalkOutput(**{name: x[:bs] for name, x in vars(self._outputs[self._turn]).items()})

    def begin(self, prefix: torch.Tensor) -> None:
        """Note the prefix lengths [bs] of this step; rows of a padded graph beyond them have no prefix."""
        bs = prefix.shape[0]
        self.prefix[:bs].copy_(prefix)
        if bs < self._last_bs:
            self.prefix[bs : self._last_bs].zero_()
        self._last_bs = bs
