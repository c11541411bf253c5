"""Self-test cases of the tree ops: selection, building, masks, page tables, acceptance."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .entry_order import entry_order
from .kernels import ancestor_bits as bits_op
from .kernels import entry_order as entry_op
from .kernels import fa3_tables as fa3_op
from .kernels import topk_lse as topk_op
from .kernels import tree_build as build_op
from .kernels import tree_mask as mask_op
from .kernels import walk as walk_op
from .kernels.reference.ancestor_bits import ancestor_bits
from .kernels.reference.fa3_tables import fa3_tables
from .kernels.reference.topk_lse import topk_lse
from .kernels.reference.tree_build import tree_build
from .kernels.reference.tree_mask import tree_mask
from .kernels.reference.walk import walk
from .selftest_data import Outcome, Random, differing, poisoned
from .selftest_kernels import Case
from .tables import TreeTables


def cases(device: str, full: bool) -> Iterator[Case]:
    """``full`` adds the sizes that only a GPU does in reasonable time."""
    vocabularies = [(1000, 8), (4097, 32), (40, 40), (8195, 1)] + ([(248320, 32), (151936, 64)] if full else [])
    for vocab, k in vocabularies:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            yield Case("topk_lse", f"V={vocab} K={k} {dtype}", lambda v=vocab, k=k, t=dtype: _topk(device, v, k, t))
    yield Case("topk_lse", "4 shards", lambda: _shards(device))
    for budget in [1, 2, 7, 15, 16, 31, 64, 130] + ([256, 512, 1023, 1024] if full else [257]):
        for levels, k, ties, spine, penalty in (
            (15, 16, False, 0, 0.0),
            (7, 1, False, 0, 0.0),
            (15, 32, True, 15, 0.5),
            (1, 8, True, 0, 0.0),
        ):
            name = f"B={budget} L={levels} K={k} ties={ties} spine={spine} penalty={penalty}"
            yield Case(
                "tree_build", name,
                lambda b=budget, n=levels, k=k, t=ties, s=spine, p=penalty: _build(device, b, n, k, t, s, p),
            )  # fmt: skip
    for nodes in [1, 15, 16, 63, 64, 130] + ([255, 1024] if full else []):
        yield Case("ancestor_bits", f"B={nodes}", lambda n=nodes: _bits(device, n))
        yield Case("tree_mask", f"B={nodes}", lambda n=nodes: _mask(device, n))
        yield Case("tree_mask", f"B={nodes} full rows", lambda n=nodes: _full_mask(device, n))
        yield Case("fa3_tables", f"B={nodes}", lambda n=nodes: _fa3(device, n))
        yield Case("walk", f"B={nodes}", lambda n=nodes: _walk(device, n))
        for spine in (0, 6, 15):
            yield Case("entry_order", f"B={nodes} spine={spine}", lambda n=nodes, s=spine: _entry_order(device, n, s))


def _topk(device: str, vocab: int, k: int, dtype: torch.dtype) -> Outcome:
    random = Random(vocab + k, device)
    x = random.normal(6, vocab, dtype=dtype) * 3
    x[1] = x[1].round()
    x[2, ::3] = -torch.inf
    x[3, vocab // 2] = torch.nan
    x[4] = -torch.inf
    want, want_ids = topk_lse(x, k)
    out = (poisoned((6, k), torch.float32, device), poisoned((6, k), torch.int64, device))
    scratch = topk_op.TopKScratch.empty(6, vocab, k, device)
    scratch.value.fill_(torch.nan)
    topk_op.topk_lse(x, k, out=out, scratch=scratch)
    usable = torch.isfinite(want)
    wrong = differing(torch.isfinite(out[0]), usable) + differing(out[1][usable], want_ids[usable])
    unwritten = float(((out[1] < 0) | (out[1] >= vocab)).sum())
    return Outcome(wrong + unwritten + float((out[0] - want)[usable].abs().max()), 1e-5)


def _shards(device: str) -> Outcome:
    random = Random(4, device)
    x = random.normal(5, 4000).round()
    want, want_ids = topk_lse(x, 16)
    values, ids, sums = [], [], []
    for shard in range(4):
        part = x[:, shard * 1000 : (shard + 1) * 1000]
        lse = poisoned((5,), torch.float32, device)
        value, index = topk_op.topk_lse(part, 16, first_id=shard * 1000, lse_out=lse)
        values.append(value)
        ids.append(index.int())
        sums.append(lse)
    got, got_ids = topk_op.merge_shards(torch.stack(values), torch.stack(ids), torch.stack(sums))
    return Outcome(differing(got_ids, want_ids) + float((got - want).abs().max()), 1e-5)


def _build(device: str, budget: int, levels: int, k: int, ties: bool, spine: int, penalty: float) -> Outcome:
    random = Random(budget * 31 + levels, device)
    logp, ids = random.marginals(3, levels, min(k, 256), ties=ties)
    logp[1, levels // 2 :, k // 2 :] = -torch.inf
    logp[2] = -torch.inf
    want = tree_build(logp, ids, budget, spine, penalty)
    out = TreeTables(**{name: poisoned(tuple(x.shape), x.dtype, device) for name, x in vars(want).items()})
    root = random.integers(0, 256, 3)
    prefix = random.integers(0, 1000, 3)
    positions = poisoned((3, budget + 1), torch.int64, device)
    build_op.tree_build(logp, ids, budget, spine, penalty, out=out, root=root, prefix_lens=prefix, positions=positions)
    want.tok[:, 0] = root
    wrong = sum(differing(getattr(out, name), x) for name, x in vars(want).items())
    return Outcome(wrong + differing(positions, prefix[:, None] + want.dep), 0.0)


def _bits(device: str, nodes: int) -> Outcome:
    tables = Random(nodes, device).tree(3, nodes, 15)
    want = ancestor_bits(tables)
    got = bits_op.ancestor_bits(tables, out=poisoned(tuple(want.shape), torch.int64, device))
    return Outcome(differing(got, want), 0.0)


def _mask(device: str, nodes: int) -> Outcome:
    tables = Random(nodes, device).tree(2, nodes, 15)
    want = tree_mask(tables)
    out = poisoned(tuple(want.shape), torch.uint8, device)
    mask_op.tree_mask(tables, out=out)
    return Outcome(differing(out, want.to(torch.uint8)), 0.0)


def _full_mask(device: str, nodes: int) -> Outcome:
    tables = Random(nodes, device).tree(3, nodes, 7)
    width = nodes + 1
    want = tree_mask(tables).to(torch.uint8)
    prefix = torch.tensor([5, 0, 131], device=device)
    out = poisoned((int((width * (prefix + width)).sum()),), torch.uint8, device)
    mask_op.tree_mask(tables, out=out, prefix_lens=prefix)
    wrong, start = 0.0, 0
    for b, n in enumerate(prefix.tolist()):
        block = out[start : start + width * (n + width)].view(width, n + width)
        wrong += differing(block[:, n:], want[b]) + float((block[:, :n] != 255).sum())
        start += block.numel()
    return Outcome(wrong, 0.0)


def _fa3(device: str, nodes: int) -> Outcome:
    random = Random(nodes, device)
    tables = random.tree(2, nodes, 15)
    slots = random.permutation(5000)[: 2 * (nodes + 1)].view(2, nodes + 1)
    pages, lengths = fa3_tables(tables, slots)
    out = (torch.zeros_like(pages), poisoned(tuple(lengths.shape), torch.int32, device))
    fa3_op.fa3_tables(tables, slots, out=out)
    return Outcome(differing(out[0], pages) + differing(out[1], lengths), 0.0)


def _entry_order(device: str, nodes: int, spine: int) -> Outcome:
    random = Random(nodes, device)
    tables = random.tree(3, nodes, 15, spine=spine)
    path, lengths, _, _ = walk(random.targets(tables), tables)
    want = entry_order(tables, path, lengths, spine)
    return Outcome(differing(entry_op.entry_order(tables, path, lengths, spine), want), 0.0)


def _walk(device: str, nodes: int) -> Outcome:
    random = Random(nodes, device)
    tables = random.tree(5, nodes, 15)
    target = random.targets(tables)
    want = walk(target, tables)
    out = tuple(poisoned(tuple(x.shape), x.dtype, device) for x in want)
    prefix = random.integers(0, 1000, 5)
    lengths = poisoned((5,), torch.int64, device)
    chain = poisoned((5,), torch.int32, device)
    walk_op.walk(target, tables, out=out, chain_lens=chain, prefix_lens=prefix, new_lens=lengths)  # type: ignore[arg-type]
    wrong = sum(differing(a, b) for a, b in zip(out, want, strict=True))
    return Outcome(wrong + differing(lengths, prefix + want[1]) + differing(chain, _chain_lens(target, tables)), 0.0)


def _chain_lens(target: torch.Tensor, tables: TreeTables) -> torch.Tensor:
    """Rows that the chain of first children alone would have accepted, root included."""
    lengths = []
    for b in range(target.shape[0]):
        row, n = 0, 1
        child = int(tables.first_child[b, row])
        while child >= 0 and int(tables.tok[b, child]) == int(target[b, row]):
            row, n = child, n + 1
            child = int(tables.first_child[b, row])
        lengths.append(n)
    return torch.tensor(lengths, dtype=torch.int32, device=target.device)
