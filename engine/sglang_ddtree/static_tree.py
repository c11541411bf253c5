"""The buffers of one decode step that live at fixed addresses, so that CUDA graphs can be replayed over them."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass
class _Rows:
    """What depends on the number of rows: tables [max_bs, T, ...], ancestor bits, positions, and each request's first row."""

    tables: TreeTables
    bits: torch.Tensor
    positions: torch.Tensor
    first_rows: torch.Tensor

    @classmethod
    def empty(cls, max_bs: int, width: int, max_depth: int, device: torch.device | str) -> _Rows:
        return cls(
            tables=TreeTables.empty(max_bs, width, max_depth, device),
            bits=torch.zeros((max_bs, width, -(-width // WORD)), dtype=torch.int64, device=device),
            positions=torch.zeros((max_bs, width), dtype=torch.int64, device=device),
            first_rows=torch.arange(max_bs, device=device)[:, None] * width,
        )


class StaticTree:
    """Tree tables, ancestor bits, positions and prefix lengths for up to ``max_bs`` requests.

    widths: T of every width a step can have (one number: that one).  ``use(i)`` puts the i-th in force; widths of equal T
    share their tables, and each has its own row of counters.
    """

    def __init__(self, max_bs: int, widths: int | Sequence[int], max_depth: int, device: torch.device | str) -> None:
        self.widths = (widths,) if isinstance(widths, int) else tuple(widths)
        self.max_bs, self.max_depth = max_bs, max_depth
        self.max_width = max(self.widths)
        self._rows = {width: _Rows.empty(max_bs, width, max_depth, device) for width in set(self.widths)}
        self.prefix = torch.zeros((max_bs,), dtype=torch.int64, device=device)
        self.scratch = torch.empty((5 * max_bs * self.max_width,), dtype=torch.int32, device=device)
        # By width: the walk's counters, and last the trees without a node, which a draft of NaN gives.
        self.all_counters = torch.zeros((len(self.widths), 5 + max_depth + 2), dtype=torch.int64, device=device)
        self._views: dict[tuple[int, int], TreeTables] = {}
        self._outputs = [self._walk_output(device) for _ in range(2)]
        self._turn = 0
        self._last_bs = 0
        self.use(len(self.widths) - 1)

    def use(self, index: int) -> None:
        """Put the ``index``-th width in force: for the next step, or for a graph that is captured now."""
        self.width = self.widths[index]
        rows = self._rows[self.width]
        self.tables, self.bits, self.positions, self.first_rows = (
            rows.tables,
            rows.bits,
            rows.positions,
            rows.first_rows,
        )
        self.counters = self.all_counters[index]

    def _walk_output(self, device: torch.device | str) -> WalkOutput:
        def int64(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        bs, block = self.max_bs, self.max_depth + 1
        commit = torch.zeros((bs,), dtype=torch.int32, device=device)
        return WalkOutput(int64(bs, block), commit, int64(bs), int64(bs, block), int64(bs))

    def view(self, bs: int) -> TreeTables:
        """The tables of the first ``bs`` requests."""
        key = (self.width, bs)
        if key not in self._views:
            self._views[key] = TreeTables(**{name: x[:bs] for name, x in vars(self.tables).items()})
        return self._views[key]

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
