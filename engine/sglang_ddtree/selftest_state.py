"""Self-test cases of the recurrent-state ops and the KV ops, every tile configuration of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from .kernels import compact_kv as compact_op
from .kernels import conv_commit as conv_commit_op
from .kernels import conv_tree as conv_op
from .kernels import gdn_replay_commit as replay_op
from .kernels import gdn_tiles as verify_tiles
from .kernels import gdn_tree_verify as verify_op
from .kernels import tree_attention as attention_op
from .kernels.common import device_limit, interpreting
from .kernels.reference.ancestor_bits import ancestor_bits
from .kernels.reference.compact_kv import compact_kv
from .kernels.reference.conv_commit import conv_commit
from .kernels.reference.conv_tree import conv_tree
from .kernels.reference.gdn_replay_commit import gdn_replay_commit
from .kernels.reference.gdn_tree_verify import gdn_tree_verify
from .kernels.reference.tree_attention import tree_attention
from .prefix_attention import flash_attention, prefix_attention
from .selftest_data import HybridShape, Outcome, Random, deepest_path, differing, poisoned, relative
from .selftest_kernels import Case

SMALL = HybridShape(1, 2, 32, 32)
ODD = HybridShape(1, 3, 64, 48)
WIDE = HybridShape(1, 4, 128, 128)
REAL = HybridShape(16, 48, 128, 128)


def cases(device: str, full: bool) -> Iterator[Case]:
    yield from _hybrid_cases(device, full)
    yield from _kv_cases(device, full)


def _hybrid_cases(device: str, full: bool) -> Iterator[Case]:
    shapes = [SMALL, ODD, WIDE] + ([REAL] if full else [])
    for shape in shapes:
        for nodes in (16, 40):
            yield Case("conv_tree", f"{shape} B={nodes}", lambda s=shape, n=nodes: _conv(device, s, n))
        for raw in (False, True):
            yield Case("gdn_replay_commit", f"{shape} raw={raw}", lambda s=shape, r=raw: _replay(device, s, r))
        yield Case("conv_commit", f"{shape}", lambda s=shape: _conv_commit(device, s))
    # The interpreter knows no warps: what differs in nothing else is one case there.
    tiles = {config if full else replace(config, warps=0): config for config in verify_tiles.CONFIGS}
    for shape in shapes:
        for config in tiles.values():
            if shape.value_dim % (config.bv * config.chunks):
                continue
            for width in _widths(shape, config, full):
                for correlated in (False, True) if full or width < 64 else (True,):
                    name = f"{shape} {config} T={width} correlated={correlated}"
                    yield Case(
                        "gdn_tree_verify", name,
                        lambda s=shape, c=config, w=width, k=correlated: verify_error(device, s, c, w, k),
                    )  # fmt: skip


def _widths(shape: HybridShape, config: verify_tiles.VerifyConfig, full: bool) -> list[int]:
    """One tile, full or not, and several of them; few of each for the interpreter, which is slow."""
    if full:
        return [1, 16, 17, 32, 33, 64, 65, 96, 128, 129, 256]
    if shape == SMALL:
        return [1, 16, 33, 96]
    return [17] if config == verify_tiles.SMALL_HEADS and shape == WIDE else [17, 65]


def _conv(device: str, shape: HybridShape, nodes: int) -> Outcome:
    random = Random(nodes, device)
    tables = random.tree(3, nodes, 15)
    width, channels = nodes + 1, shape.channels
    x = random.normal(3, width, channels, dtype=torch.bfloat16)
    state = random.normal(5, channels, 3, dtype=torch.bfloat16)
    weight = random.normal(channels, 4, dtype=torch.bfloat16)
    bias = random.normal(channels, dtype=torch.bfloat16)
    slots = torch.tensor([3, -1, 1], dtype=torch.int32, device=device)
    gates = (random.normal(3, width, shape.value_heads), random.normal(3, width, shape.value_heads))
    kept = tuple(poisoned(tuple(t.shape), t.dtype, device) for t in (x, *gates))
    out = poisoned(tuple(x.shape), x.dtype, device)
    want = conv_tree(x.float(), state, weight, bias, slots, tables)
    conv_op.conv_tree(x, state, weight, bias, slots, tables, out=out, record=kept, gate_inputs=gates)  # type: ignore[arg-type]
    wrong = sum(differing(a, b) for a, b in zip(kept, (x, *gates), strict=True))
    # Triton's interpreter cuts bfloat16 off where a GPU rounds to nearest.
    return Outcome(wrong + relative(out, want), 6e-3 if interpreting() else 3e-3)


def verify_error(
    device: str, shape: HybridShape, config: verify_tiles.VerifyConfig, width: int, correlated: bool
) -> Outcome:
    """Output error against the float64 reference of a tree of ``width`` rows; scratch and output start as NaN."""
    random = Random(width, device)
    bs = 2
    tables = random.tree(bs, max(width - 1, 1), 15, spine=4)
    width = tables.width
    mixed = random.normal(bs, width, shape.channels, dtype=torch.bfloat16)
    if correlated:  # keys that point the same way make the triangular system hard
        mixed = mixed + 1
    q, k, v = split_heads(mixed, shape)
    # Real dimensions use the model's own types, so that a later benchmark times what was tested here.
    gate_type = torch.bfloat16 if shape == REAL else torch.float32
    a = random.normal(bs, width, shape.value_heads, dtype=gate_type) - 2
    b = random.normal(bs, width, shape.value_heads, dtype=gate_type)
    a_log, dt_bias = random.normal(shape.value_heads) * 0.5, random.normal(shape.value_heads) * 0.1
    state = random.normal(4, shape.value_heads, shape.value_dim, shape.key_dim) * 0.3
    before = state.clone()
    slots = torch.tensor([2, -1 if width == 17 else 1], dtype=torch.int32, device=device)
    scratch = verify_op.VerifyScratch.empty(bs, width, shape.key_heads, device)
    for part in vars(scratch).values():
        part.fill_(torch.nan)
    want = gdn_tree_verify(q.float(), k.float(), v.float(), a, b, a_log, dt_bias, state, slots, tables)
    out = poisoned((bs, width, shape.value_heads, shape.value_dim), gate_type, device)
    verify_op.gdn_tree_verify(
        q, k, v, a, b, a_log, dt_bias, state, slots, tables, config=config, out=out, scratch=scratch
    )
    return Outcome(differing(state, before) + relative(out, want), 3e-3 if shape == REAL else 1e-3)


def split_heads(mixed: torch.Tensor, shape: HybridShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[.., C] -> views q, k [.., H, K] and v [.., HV, V]."""
    keys = shape.key_heads * shape.key_dim
    return (
        mixed[..., :keys].unflatten(-1, (shape.key_heads, shape.key_dim)),
        mixed[..., keys : 2 * keys].unflatten(-1, (shape.key_heads, shape.key_dim)),
        mixed[..., 2 * keys :].unflatten(-1, (shape.value_heads, shape.value_dim)),
    )


def _replay(device: str, shape: HybridShape, raw: bool) -> Outcome:
    """Two layers at once; the raw form must leave the bits of the recorded form."""
    random = Random(7, device)
    layers, bs, nodes = 2, 3, 31
    tables = random.tree(bs, nodes, 15, spine=9)
    path, lengths = deepest_path(tables)
    x = random.normal(layers, bs, nodes + 1, shape.channels, dtype=torch.bfloat16)
    conv_state = random.normal(layers, 6, shape.channels, 3, dtype=torch.bfloat16)
    weight = random.normal(layers, shape.channels, 4, dtype=torch.bfloat16) * 0.5
    slots = torch.tensor([3, -1, 2], dtype=torch.int32, device=device)
    track = (torch.tensor([0, 1, 4], device=device), torch.tensor([2, 0, -1], device=device))
    a, b = (random.normal(layers, bs, nodes + 1, shape.value_heads, dtype=torch.bfloat16) for _ in range(2))
    a_log, dt_bias = random.normal(layers, shape.value_heads), random.normal(layers, shape.value_heads)
    state = random.normal(layers, 6, shape.value_heads, shape.value_dim, shape.key_dim)
    want, got, recorded = state.clone(), state.clone(), state.clone()
    y = torch.stack([conv_op.conv_tree(x[i], conv_state[i], weight[i], None, slots, tables) for i in range(layers)])
    _, k, v = split_heads(y, shape)
    for i in range(layers):
        gdn_replay_commit(k[i], v[i], a[i], b[i], a_log[i], dt_bias[i], path, lengths, want[i], slots, *track)
    arguments = (a, b, a_log, dt_bias, path, lengths)
    replay_op.gdn_replay_commit(k, v, *arguments, recorded, slots, *track)
    if not raw:
        return Outcome(relative(recorded, want), 1e-5)
    record = replay_op.RawRecord(conv_state, weight, None, shape.key_heads)
    replay_op.gdn_replay_commit(x, None, *arguments, got, slots, *track, raw=record)
    return Outcome(differing(got, recorded) + relative(got, want), 1e-5)


def _conv_commit(device: str, shape: HybridShape) -> Outcome:
    random = Random(9, device)
    tables = random.tree(3, 40, 15)
    path, lengths = deepest_path(tables)
    x = random.normal(2, 3, 41, shape.channels, dtype=torch.bfloat16)
    want = random.normal(2, 6, shape.channels, 3, dtype=torch.bfloat16)
    got = want.clone()
    slots = torch.tensor([3, -1, 2], dtype=torch.int32, device=device)
    track = (torch.tensor([0, 1, 4], device=device), torch.tensor([0, 0, -1], device=device))
    for i in range(2):
        conv_commit(x[i], path, lengths, want[i], slots, *track)
    conv_commit_op.conv_commit(x, path, lengths, got, slots, *track)
    return Outcome(differing(got, want), 0.0)


def _kv_cases(device: str, full: bool) -> Iterator[Case]:
    for page in (1, 16):
        for name in ("tree path", "each one down"):
            yield Case("compact_kv", f"{name} page={page}", lambda p=page, n=name: _compact(device, p, n))
    limit = device_limit(torch.empty(0, device=device))
    for dim, configs in attention_op.CONFIGS.items():
        if dim == 256 and not full:
            continue
        for config in configs:
            if attention_op.shared_bytes(dim, config) > limit:
                continue
            for width, group, page, splits in ((17, 3, 1, 3), (65, 6 if full else 1, 16, 1), (33, 1, 1, 16)):
                name = f"D={dim} {config} T={width} group={group} page={page} splits={splits}"
                yield Case(
                    "tree_attention", name,
                    lambda d=dim, c=config, w=width, g=group, p=page, s=splits: _attention(device, d, c, w, g, p, s),
                )  # fmt: skip

    flash = flash_attention()  # what reads the prefix of large batches, where this machine has it
    for dim in attention_op.CONFIGS if flash else ():
        for width, page in ((17, 1), (65, 16)):
            yield Case(
                "tree_attention", f"D={dim} after FlashAttention T={width} page={page}",
                lambda d=dim, w=width, p=page: _attention_after(flash, device, d, w, p),
            )  # fmt: skip


def _compact(device: str, page: int, name: str) -> Outcome:
    random = Random(page, device)
    tables = random.tree(4, 63, 15, spine=0)
    path, lengths = deepest_path(tables)
    if name == "each one down":  # every target is the next source: order of reads and writes matters
        path = (torch.arange(16, device=device)[None] + 1).repeat(4, 1)
        path[:, 0] = 0
        lengths = torch.full((4,), 16, dtype=torch.int32, device=device)
    loc = random.permutation(1024)[: 4 * 64].view(4, 64)
    paged = random.normal(1024 // page, 3, page, 40, dtype=torch.float16)
    flat = paged.permute(0, 2, 1, 3).reshape(1024, 3, 40).clone()
    if page == 1:
        got = [flat.clone(), flat.clone() + 1, random.normal(1024, 4)]
        want = [x.clone() for x in got]
        compact_kv(want, loc, path, lengths)
        compact_op.compact_kv(got, loc, path, lengths)
        return Outcome(sum(differing(a, b) for a, b in zip(got, want, strict=True)), 0.0)
    compact_kv([flat], loc, path, lengths)
    compact_op.KvMover([paged], page).move(loc, path, lengths)
    return Outcome(differing(paged.permute(0, 2, 1, 3).reshape(1024, 3, 40), flat), 0.0)


def _attention_inputs(device: str, dim: int, width: int, group: int, page: int) -> tuple[Any, ...]:
    """q and the arguments of ``tree_attention``: three requests with two KV heads, one of them without a prefix."""
    random = Random(width, device)
    bs, kv_heads = 3, 2
    dtype = torch.bfloat16 if device == "cuda" else torch.float16
    bits = ancestor_bits(random.tree(bs, width - 1, 15))
    prefix = torch.tensor([83, 0, 300 if device == "cuda" else 37], device=device)
    k, v = (random.normal(2048, kv_heads, dim, dtype=dtype) for _ in range(2))
    q = random.normal(bs * width, kv_heads * group, dim, dtype=dtype)
    per_request = 320 // page
    table = random.permutation(1024 // page)[: 3 * per_request].view(3, per_request).int()
    tree = 1024 + random.permutation(1024)[: bs * width].view(bs, width)
    return q, k, v, table, prefix, tree, bits, dim**-0.5


def _attention_after(flash: Callable[..., Any], device: str, dim: int, width: int, page: int) -> Outcome:
    q, k, v, table, prefix, *rest = _attention_inputs(device, dim, width, 3, page)
    want = tree_attention(q.double(), k, v, table, prefix, *rest, page_size=page)
    starts = torch.arange(0, q.shape[0] + 1, width, dtype=torch.int32, device=device)
    out = poisoned(tuple(q.shape), q.dtype, device)
    for parts in (0, 1):
        before = prefix_attention(flash, q, k, v, table, prefix.int(), starts, rest[-1], page_size=page, parts=parts)
        attention_op.tree_attention(
            q, k, v, table, prefix, *rest, page_size=page, config=attention_op.AFTER_PREFIX, before=before, out=out
        )
        if not (found := Outcome(relative(out, want), 6e-3)).ok:
            return found
    return found


def _attention(
    device: str, dim: int, config: attention_op.AttentionConfig, width: int, group: int, page: int, splits: int
) -> Outcome:
    q, k, v, table, prefix, tree, bits, scale = _attention_inputs(device, dim, width, group, page)
    dtype, bs, kv_heads = q.dtype, 3, k.shape[1]
    want = tree_attention(q.double(), k, v, table, prefix, tree, bits, scale, page_size=page)
    scratch = attention_op.AttentionScratch.empty(bs * width, kv_heads * group, dim, splits, device)
    scratch.part.fill_(torch.nan)
    scratch.lse.fill_(torch.nan)
    out = poisoned(tuple(q.shape), dtype, device)
    arguments = (k, v, table, prefix, tree, bits, scale)
    attention_op.tree_attention(q, *arguments, page_size=page, splits=splits, config=config, out=out, scratch=scratch)
    flat = poisoned(tuple(q.shape), dtype, device)
    starts = torch.arange(3, device=device) * table.shape[1]
    flat_arguments = (k, v, table.reshape(-1), *arguments[3:])
    attention_op.tree_attention(
        q, *flat_arguments, starts=starts, page_size=page, splits=splits, config=replace(config), out=flat
    )
    return Outcome(max(relative(out, want), relative(flat, want)), 6e-3)
