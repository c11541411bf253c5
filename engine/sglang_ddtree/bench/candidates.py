"""Which variants that no launcher picks yet should become defaults on this GPU, and for which sizes.

    python -m sglang_ddtree.bench.candidates --json FILE

Every candidate is first held against its reference on the device, at the very sizes and at odd ones, with outputs and
scratch full of NaN.  The right ones are timed beside the default in turn: medians of graph replays at the dimensions of
Qwen3.6-27B.  The last lines are a table of what to change.  Exit code 1 when a candidate is wrong or fails, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..kernels import ancestor_bits, gdn_tiles, tree_attention
from ..kernels.common import device_limit, interpreting
from ..kernels.gdn_tree_verify import VerifyScratch, gdn_tree_verify
from ..kernels.reference.gdn_tree_verify import gdn_tree_verify as plain_verify
from ..kernels.reference.tree_attention import tree_attention as plain_attention
from ..prefix_attention import flash_attention, pays, prefix_attention, prefix_parts
from ..selftest_data import HybridShape, Outcome, Random, relative
from ..selftest_state import REAL, split_heads, verify_error
from .inputs import HEADS, AttentionInputs
from .judge import Arm, Row, Shape, Timer, judge, table
from .report import write_result

VERIFY = tuple((width, bs) for width in (16, 17, 32, 33, 64, 65, 128, 129, 256, 257) for bs in (1, 8))
ROWS = ((16, 8), (32, 8), (64, 8), (64, 1), (64, 2), (64, 4), (128, 1), (256, 1))  # (rows of a tree, requests)
DENSE = (32, 8, 128)  # heads of a dense Qwen3 of 8 billion parameters
ATTENTION = tuple((width, bs, context, HEADS) for width, bs in ROWS for context in (256, 4096)) + tuple(
    (width, bs, context, DENSE) for width, bs in ((32, 8), (64, 1), (64, 8)) for context in (256, 4096)
)
ODD = (17, 66)
VERIFY_LIMIT, ATTENTION_LIMIT = 3e-3, 6e-3  # relative errors of bfloat16 outputs, as in the self-test
Prefix = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@functools.cache
def _odd_sizes(device: str, shape: HybridShape, config: gdn_tiles.VerifyConfig) -> Outcome:
    return max((verify_error(device, shape, config, width, True) for width in ODD), key=lambda outcome: outcome.error)


def verify_shape(width: int, bs: int, shape: HybridShape = REAL, device: str = "cuda") -> Shape:
    """The tree verify of one recurrent layer; states rotate, so that they come from memory as in a model."""
    random = Random(width, device)
    tables = random.tree(bs, width - 1, 15, spine=8)
    bits = ancestor_bits.ancestor_bits(tables)
    mixed = random.normal(bs, width, shape.channels, dtype=torch.bfloat16)
    a, b = (random.normal(bs, width, shape.value_heads, dtype=torch.bfloat16) for _ in range(2))
    gates = (a - 2, b, random.normal(shape.value_heads) * 0.5, random.normal(shape.value_heads) * 0.1)
    state = random.normal(bs + 2, shape.value_heads, shape.value_dim, shape.key_dim) * 0.3
    slots = torch.arange(1, bs + 1, dtype=torch.int32, device=device)
    out = torch.empty((bs, width, shape.value_heads, shape.value_dim), dtype=torch.bfloat16, device=device)
    scratch = VerifyScratch.empty(bs, width, shape.key_heads, device)
    inputs = (*split_heads(mixed, shape), *gates)
    states = [state, *(state.clone() for _ in range(max(2, 24 // bs) - 1 if device == "cuda" else 0))]

    def call(of: torch.Tensor, config: gdn_tiles.VerifyConfig) -> None:
        gdn_tree_verify(*inputs, of, slots, tables, bits=bits, config=config, out=out, scratch=scratch)

    @functools.cache
    def want() -> torch.Tensor:
        q, k, v = (x.float() for x in inputs[:3])
        return plain_verify(q, k, v, *inputs[3:], state, slots, tables)

    def check(config: gdn_tiles.VerifyConfig) -> Outcome:
        for x in (out, *vars(scratch).values()):
            x.fill_(torch.nan)
        call(state, config)
        here = Outcome(relative(out, want()), ATTENTION_LIMIT if interpreting() else VERIFY_LIMIT)
        return here if not here.ok else max(here, _odd_sizes(device, shape, config), key=lambda x: x.error / x.limit)

    default = gdn_tiles.pick_config(width, bs * shape.value_heads, shape.value_dim)
    fitting = [
        config for config in dict.fromkeys((default, *gdn_tiles.CONFIGS, *gdn_tiles.CANDIDATES))
        if config == default or (config.rows <= max(16, width) and not shape.value_dim % (config.bv * config.chunks))
    ]  # fmt: skip
    arms = [
        Arm(config.label, [lambda s=s, c=config: call(s, c) for s in states], lambda c=config: check(c))
        for config in fitting
        if config == default or config != gdn_tiles.SMALL_HEADS
    ]
    return Shape("gdn_tree_verify", {"width": width, "bs": bs}, arms)


def attention_shape(
    width: int, bs: int, context: int, prefix: Prefix | None, heads: tuple[int, int, int] = HEADS, device: str = "cuda"
) -> Shape:
    """One layer's attention of a verify pass; ``prefix`` is FlashAttention over the committed tokens, where there is one."""
    inputs = AttentionInputs.make(width, bs, context, heads, device)
    out = torch.empty_like(inputs.q)

    @functools.cache
    def want() -> torch.Tensor:
        return plain_attention(inputs.q.double(), *inputs.arguments(inputs.pools[0]))

    def arm(name: str, call: Callable[[torch.Tensor], object], scratch: Any = None) -> Arm:
        def check() -> Outcome:
            for x in (out, *(vars(scratch).values() if scratch else ())):
                x.fill_(torch.nan)
            call(inputs.pools[0])
            return Outcome(relative(out, want()), ATTENTION_LIMIT)

        return Arm(name, [lambda pool=pool: call(pool) for pool in inputs.pools], check)

    def attend(pool: torch.Tensor, **options: Any) -> None:
        tree_attention.tree_attention(inputs.q, *inputs.arguments(pool), out=out, **options)

    def tile(config: tree_attention.AttentionConfig) -> Arm:
        splits = tree_attention.pick_splits(bs, width, heads[1], heads[0] // heads[1], config)
        scratch = tree_attention.AttentionScratch.empty(bs * width, heads[0], heads[2], splits, device)
        options: dict[str, Any] = {"config": config, "splits": splits, "scratch": scratch}
        return arm(f"{config.label} /{splits}", lambda pool: attend(pool, **options), scratch)

    def joined(over_prefix: Prefix, config: tree_attention.AttentionConfig, parts: int) -> Arm:
        def call(pool: torch.Tensor) -> None:
            lengths = inputs.lengths.int()
            before = over_prefix(inputs.q, *pool, inputs.table, lengths, inputs.query_starts, inputs.scale, parts=parts)
            attend(pool, config=config, before=before)

        return arm(f"fa3 /{parts or 'auto'} + tree {config.label}", call)

    tiles = _attention_tiles(heads[2], device_limit(out))
    arms = [tile(config) for config in tiles]
    if prefix is not None:
        parts = prefix_parts(bs, width, heads[1], heads[0] // heads[1])
        tree_tiles = dict.fromkeys((tree_attention.AFTER_PREFIX, tiles[0]))
        over_prefix = [joined(prefix, config, some) for config in tree_tiles for some in dict.fromkeys((parts, 0, 1))]
        arms = over_prefix + arms if pays(bs, bs * width) else arms + over_prefix
    return Shape("tree_attention", {"width": width, "bs": bs, "context": context, "head": heads[2]}, arms)


def _attention_tiles(dim: int, limit: int) -> list[tree_attention.AttentionConfig]:
    """Those that fit ``limit`` bytes of shared memory, the default first."""
    default = tree_attention.pick_config(dim, limit)
    others = (*tree_attention.CONFIGS[dim], *tree_attention.CANDIDATES.get(dim, ()))
    return list(dict.fromkeys((default, *(x for x in others if tree_attention.shared_bytes(dim, x) <= limit))))


def shapes(ops: set[str]) -> Iterator[tuple[str, dict[str, int], Callable[[], Shape]]]:
    """What is measured, built one after the other since each fills gigabytes."""
    flash = flash_attention()
    prefix = functools.partial(prefix_attention, flash) if flash else None
    if "gdn_tree_verify" in ops:
        for width, bs in VERIFY:
            yield "gdn_tree_verify", {"width": width, "bs": bs}, functools.partial(verify_shape, width, bs)
    if "tree_attention" in ops:
        for width, bs, context, heads in ATTENTION:
            sizes = {"width": width, "bs": bs, "context": context, "head": heads[2]}
            yield "tree_attention", sizes, functools.partial(attention_shape, width, bs, context, prefix, heads)


def measure(ops: set[str], timer: Timer, rounds: int, keep: Callable[[list[Row]], None]) -> list[Row]:
    """Rows of every shape; ``keep`` gets all of them after each, so that an interrupted run leaves what it measured."""
    rows: list[Row] = []
    for op, sizes, build in shapes(ops):
        try:
            rows += judge(build(), timer, rounds)
        except Exception as error:  # out of memory at one size must not hide the others
            rows.append({"op": op, **sizes, "kernel": "inputs", "error": f"{type(error).__name__}: {error}"[:300]})
        keep(rows)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.candidates")
    parser.add_argument("--ops", default="gdn_tree_verify,tree_attention")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=Path(os.environ.get("OUT", ".")) / "candidates.json")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("bench.candidates needs a CUDA GPU; none is visible here.", file=sys.stderr)
        return 2
    from .timing import clock

    shown = 0

    def keep(rows: list[Row]) -> None:
        nonlocal shown
        for row in rows[shown:]:
            print({key: value for key, value in row.items() if key != "all"}, flush=True)
        shown = len(rows)
        write_result(options.json, "candidates", rows, rounds=options.rounds)

    rows = measure(set(options.ops.split(",")), clock, options.rounds, keep)
    print(*table(rows), sep="\n")
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
