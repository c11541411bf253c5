"""Kernel figures at the dimensions of Qwen3.6-27B: microseconds of each op, and of SGLang's own where it is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from ..kernels import (
    ancestor_bits,
    compact_kv,
    conv_commit,
    conv_tree,
    gdn_replay_commit,
    gdn_tiles,
    gdn_tree_verify,
    topk_lse,
    tree_attention,
    tree_build,
    walk,
)
from ..selftest_data import Random, deepest_path
from ..selftest_state import REAL
from ..selftest_upstream import Layer, recurrent_kernel
from ..tables import TreeTables
from .inputs import HEADS, AttentionInputs
from .timing import copy_bandwidth, graph_time

VOCAB, LAYERS, LEVELS, CANDIDATES = 248320, 48, 15, 32
Row = dict[str, Any]


def rows(ops: Collection[str] = ()) -> Iterator[Row]:
    """Every measurement (of some ops); a failure becomes a row with its reason instead of ending the run."""
    yield {"op": "copy", "bytes_per_second": copy_bandwidth()}
    for op, measure, what in _measurements():
        if not ops or op in ops:
            yield from _guard(op, lambda m=measure, w=what: m(**w), **what)


def _measurements() -> Iterator[tuple[str, Callable[..., Iterator[Row]], dict[str, int]]]:
    for width in (16, 17, 32, 33, 64, 65, 128, 256):
        for bs in (1, 8):
            yield "gdn_tree_verify", _verify, {"width": width, "bs": bs}
    for nodes in (15, 16, 32, 64, 128, 256, 512, 1024):
        for bs in (1, 8):
            yield "tree_build", _build, {"nodes": nodes, "bs": bs}
    for bs in (1, 8):
        yield "topk_lse", _topk, {"bs": bs}
        for width in (17, 64, 65, 128):
            yield "step_ops", _step_ops, {"width": width, "bs": bs}
        for width in (16, 32, 64, 128):
            for context in (256, 4096):
                yield "tree_attention", _attention, {"width": width, "bs": bs, "context": context}


def _guard(op: str, measure: Callable[[], Iterator[Row]], **what: Any) -> Iterator[Row]:
    try:
        for row in measure():
            yield {"op": op, **what, **row}
    except Exception as error:  # one op out of memory must not hide the others
        yield {"op": op, **what, "error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        torch.cuda.empty_cache()


def _tables(bs: int, width: int) -> TreeTables:
    return Random(width, "cuda").tree(bs, width - 1, LEVELS, spine=8)


def _verify(width: int, bs: int) -> Iterator[Row]:
    """Ours for every tile configuration, and SGLang's tree-recurrent kernel with a state per node, in one process."""
    tables = _tables(bs, width)
    bits = ancestor_bits.ancestor_bits(tables)
    layer = Layer(REAL, bs, tables)
    rotate = max(2, min(LAYERS // 2, 24 // bs))
    states = [layer.state.clone() for _ in range(rotate)]
    out = torch.empty_like(layer.v).contiguous()
    scratch = gdn_tree_verify.VerifyScratch.empty(bs, width, REAL.key_heads, "cuda")
    chosen = gdn_tiles.pick_config(width, bs * REAL.value_heads, REAL.value_dim)
    for config in gdn_tiles.CONFIGS:
        if config != chosen and (config.rows > max(16, width) or config == gdn_tiles.SMALL_HEADS):
            continue

        def call(state: torch.Tensor, config: gdn_tiles.VerifyConfig = config) -> None:
            gdn_tree_verify.gdn_tree_verify(
                layer.q, layer.k, layer.v, layer.a, layer.b, layer.a_log, layer.dt_bias, state, layer.slots, tables,
                bits=bits, config=config, out=out, scratch=scratch,
            )  # fmt: skip

        yield {
            "kernel": f"ours {config.label}",
            "us": graph_time([lambda s=s: call(s) for s in states]),
            "us_one_state": graph_time([lambda: call(states[0])] * 10),
            "chosen": config == chosen,
        }
    if recurrent_kernel() is not None:
        snapshots = layer.snapshots()
        packed = layer.packed(**snapshots)
        yield {
            "kernel": "upstream tree-recurrent",
            "us": graph_time([lambda s=s: packed(s) for s in states], replays=5, repeats=5),
            "us_one_state": graph_time([lambda: packed(states[0])] * 4, replays=5, repeats=5),
        }


def _build(nodes: int, bs: int) -> Iterator[Row]:
    random = Random(nodes, "cuda")
    logp, ids = random.marginals(bs, LEVELS, CANDIDATES)
    out = TreeTables.empty(bs, nodes + 1, LEVELS, "cuda")
    scratch = torch.empty((5 * bs * (nodes + 1),), dtype=torch.int32, device="cuda")
    prefix = random.integers(0, 999, bs)
    positions = torch.empty((bs, nodes + 1), dtype=torch.int64, device="cuda")

    def call() -> None:
        tree_build.tree_build(
            logp, ids, nodes, out=out, root=prefix, prefix_lens=prefix, positions=positions, scratch=scratch
        )

    yield {"kernel": "ours", "us": graph_time([call] * 5)}


def _topk(bs: int) -> Iterator[Row]:
    rows = LEVELS * bs
    logits = [Random(i, "cuda").normal(rows, VOCAB, dtype=torch.bfloat16) for i in range(16 // bs)]
    for k in (8, 32):
        yield from _topk_of(logits, k)
    yield {"kernel": "torch argmax", "us": graph_time([lambda x=x: torch.argmax(x, -1) for x in logits])}


def _topk_of(logits: list[torch.Tensor], k: int) -> Iterator[Row]:
    rows = logits[0].shape[0]
    out = (torch.empty((rows, k), device="cuda"), torch.empty((rows, k), dtype=torch.int64, device="cuda"))
    scratch = topk_lse.TopKScratch.empty(rows, VOCAB, k, "cuda")
    ours = [lambda x=x: topk_lse.topk_lse(x, k, out=out, scratch=scratch) for x in logits]
    yield {"kernel": f"ours K{k}", "us": graph_time(ours)}
    torch_way = [lambda x=x: (torch.topk(x, k, -1), torch.logsumexp(x.float(), -1)) for x in logits]
    yield {"kernel": f"torch K{k}", "us": graph_time(torch_way)}


def _step_ops(width: int, bs: int) -> Iterator[Row]:
    """The small ops around a verify pass: bits, walk, convolution of a layer, commits of all layers, KV moves."""
    random = Random(width, "cuda")
    tables = _tables(bs, width)
    target = random.targets(tables)
    path, lengths = deepest_path(tables)
    slots = torch.arange(1, bs + 1, dtype=torch.int32, device="cuda")
    yield {"kernel": "ancestor_bits", "us": graph_time([lambda: ancestor_bits.ancestor_bits(tables)] * 5)}
    yield {"kernel": "walk", "us": graph_time([lambda: walk.walk(target, tables)] * 5)}
    x = random.normal(4, bs, width, REAL.channels, dtype=torch.bfloat16)
    conv_state = random.normal(bs + 2, REAL.channels, 3, dtype=torch.bfloat16)
    weight = random.normal(REAL.channels, 4, dtype=torch.bfloat16)
    y, kept = torch.empty_like(x[0]), torch.empty_like(x[0])
    gate = random.normal(bs, width, REAL.value_heads, dtype=torch.bfloat16)
    record = (kept, torch.empty_like(gate), torch.empty_like(gate))

    def convolve(inputs: torch.Tensor) -> None:
        conv_tree.conv_tree(
            inputs, conv_state, weight, None, slots, tables, out=y, record=record, gate_inputs=(gate, gate)
        )

    yield {"kernel": "conv_tree with record", "us": graph_time([lambda i=i: convolve(x[i]) for i in range(4)])}
    yield from _commit_times(random, tables, path, lengths, slots)
    loc = random.permutation(4096)[: bs * width].view(bs, width)
    buffers = [torch.zeros((4096, 4, 256), dtype=torch.bfloat16, device="cuda") for _ in range(32)]
    mover = compact_kv.KvMover(buffers)
    yield {
        "kernel": "compact_kv, 16 layers", "rows": int((path != torch.arange(16, device="cuda")).sum()),
        "us": graph_time([lambda: mover.move(loc, path, lengths)] * 3),
    }  # fmt: skip


def _commit_times(
    random: Random, tables: TreeTables, path: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor
) -> Iterator[Row]:
    bs, width = tables.tok.shape
    x = torch.zeros((LAYERS, bs, width, REAL.channels), dtype=torch.bfloat16, device="cuda").normal_()
    gate = torch.zeros((LAYERS, bs, width, REAL.value_heads), dtype=torch.bfloat16, device="cuda").normal_()
    conv = torch.zeros((LAYERS, bs + 1, REAL.channels, 3), dtype=torch.bfloat16, device="cuda")
    state = torch.zeros((LAYERS, bs + 1, REAL.value_heads, REAL.value_dim, REAL.key_dim), device="cuda")
    weight = torch.zeros((LAYERS, REAL.channels, 4), dtype=torch.bfloat16, device="cuda").normal_()
    per_head = torch.zeros((LAYERS, REAL.value_heads), device="cuda")
    raw = gdn_replay_commit.RawRecord(conv, weight, None, REAL.key_heads)

    def replay() -> None:
        gdn_replay_commit.gdn_replay_commit(
            x, None, gate, gate, per_head, per_head, path, lengths, state, slots, raw=raw
        )

    tokens = float(lengths.float().mean())
    yield {"kernel": "replay commit, 48 layers", "tokens": tokens, "us": graph_time([replay])}
    advance = graph_time([lambda: conv_commit.conv_commit(x, path, lengths, conv, slots)])
    yield {"kernel": "conv commit, 48 layers", "tokens": tokens, "us": advance}


def _attention(width: int, bs: int, context: int) -> Iterator[Row]:
    inputs = AttentionInputs.make(width, bs, context)
    heads, kv_heads, dim = HEADS
    out = torch.empty_like(inputs.q)
    for config in tree_attention.CONFIGS[dim]:
        splits = tree_attention.pick_splits(bs, width, kv_heads, heads // kv_heads, config)
        scratch = tree_attention.AttentionScratch.empty(bs * width, heads, dim, splits, "cuda")

        def call(pool: torch.Tensor, config: tree_attention.AttentionConfig = config, scratch: Any = scratch) -> None:
            tree_attention.tree_attention(inputs.q, *inputs.arguments(pool), config=config, out=out, scratch=scratch)

        us = graph_time([lambda p=pool: call(p) for pool in inputs.pools])
        yield {"kernel": f"ours {config.label}", "splits": splits, "us": us}
