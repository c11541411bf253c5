"""Tiles of the tree verify of Gated DeltaNet layers: those the launcher picks, and candidates that a GPU must still judge."""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

from .common import MULTIPROCESSORS, np2

PAIR_BLOCK = 64


@dataclass(frozen=True)
class VerifyConfig:
    """Tile of one program: ``rows`` rows and ``chunks`` times ``bv`` value channels of one head.

    ``solve``: how float32 products of float32 factors are made (bf16x3 or a precision of tl.dot).
    ``root``: the root has no tile and no block of its own; the first of its children's does its work as vectors,
    so 64 nodes and their root are two tiles of 32 rows.
    ``pair``: rows of a block of key and query pairs; 0 leaves it to ``pair_block``.
    ``early``: a program asks for its part of the state first of all, and from compute capability 9.0 on programs start
    while the pairs are still being made.
    """

    rows: int
    bv: int
    chunks: int
    warps: int
    solve: str = "bf16x3"
    root: bool = False
    pair: int = 0
    early: bool = False

    @property
    def label(self) -> str:
        """Short and unambiguous, for tables and result files."""
        name = f"{self.rows}x{self.bv}x{self.chunks} W{self.warps}"
        name += (" root" if self.root else "") + (f" pair{self.pair}" if self.pair else "")
        return name + (" early" if self.early else "")

    def tiles(self, width: int) -> int:
        """Tiles over ``width`` rows."""
        return int(triton.cdiv(max(width - self.root, 1), self.rows))


# Every entry is tested (selftest, interpreter tests) before the launcher may pick it.  Several chunks of a 64-row tile
# gave wrong outputs on an H200 with Triton 3.6 where there was more than one tile: there is no such entry.
FEW_16 = VerifyConfig(16, 64, 1, 8, early=True)
FEW_32 = VerifyConfig(32, 64, 1, 8, early=True)
MANY_16 = VerifyConfig(16, 64, 2, 4)
WIDE_32 = VerifyConfig(32, 128, 1, 8, pair=16, early=True)
MOST_32 = VerifyConfig(32, 128, 1, 4, early=True)
SMALL_HEADS = VerifyConfig(16, 16, 1, 4, "tf32x3")
ROOTED = {config: replace(config, root=True) for config in (WIDE_32, MOST_32)}
CONFIGS = (FEW_16, FEW_32, MANY_16, WIDE_32, MOST_32, *ROOTED.values(), SMALL_HEADS)
# Verified like the others, picked by nothing: ``bench.candidates`` says where one should be, on another GPU perhaps.
CANDIDATES = (
    VerifyConfig(16, 64, 1, 8),
    VerifyConfig(16, 64, 1, 8, root=True, early=True),
    VerifyConfig(32, 64, 1, 8),
    VerifyConfig(32, 64, 1, 8, root=True, early=True),
    VerifyConfig(32, 128, 1, 8, early=True),
    VerifyConfig(32, 128, 1, 4),
)
ROOT_UNTIL = 160  # rows: beyond, the root's work as vectors in every tile costs more than the tile that it saves


def pick_config(width: int, programs: int, value_dim: int) -> VerifyConfig:
    """The fastest tile on an H200 for ``programs`` = requests x value heads of ``width`` rows.

    Few programs: many warps and small tiles, for the shortest time of one.  Many: the least work in all, so the row
    weights are made once for all value channels, and short trees leave no tile of 32 rows half empty.  Where the root
    alone would need a tile, the first tile of its children takes it.
    """
    root = width % 32 == 1 and 1 < width < ROOT_UNTIL
    tiles = int(triton.cdiv(width - root, 32))
    few = programs * tiles < MULTIPROCESSORS
    if width <= 16:
        config = FEW_16 if few else MANY_16
    elif width <= 32 and few:
        config = FEW_32
    elif few or tiles == 1:
        config = WIDE_32
    else:
        config = MANY_16 if width < 96 and 1 < width % 32 <= 16 else MOST_32
    config = ROOTED.get(config, config) if root else config
    return config if value_dim % (config.bv * config.chunks) == 0 else SMALL_HEADS


def pair_block(config: VerifyConfig, width: int, groups: int) -> int:
    """Rows of a block of pairs for ``groups`` = requests x key heads: large, unless that leaves multiprocessors idle."""
    if config.pair:
        return config.pair
    block = min(PAIR_BLOCK, max(16, np2(width - config.root)))
    if block > 32 and groups * triton.cdiv(width - config.root, block) ** 2 < MULTIPROCESSORS:
        block = 32
    return block
