"""The exact best-first tree, one program per request, no host sync.

The frontier holds one entry per family: the best child of a node that is not in the tree yet.  Entry f belongs
to the family of node f, so adding a node changes two entries only: its own family's (next rank) and the family
it founds.  Nodes get numbers in the order in which they enter; a second phase renumbers them breadth-first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ..tables import TreeTables
from .common import Variant, np2, require, require_runnable

# A tie is packed as depth (6 bits), parent (11), rank (10), parent-on-spine (1): 28 bits of a positive int32.
MAX_BUDGET, MAX_CANDIDATES, MAX_LEVELS = 1024, 1024, 63


@triton.jit
def _ordered(score):
    """float32 -> int32 with the same order."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(key):
    """The inverse of ``_ordered``."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _tree_build_kernel(
    logp_ptr, ids_ptr, root_ptr, prefix_ptr, tok_ptr, par_ptr, dep_ptr, rank_ptr, child_ptr, sibling_ptr,
    anc_ptr, level_ptr, score_ptr, count_ptr, truncated_ptr, pos_ptr, scratch_ptr,
    spine_depth, penalty,
    L: tl.constexpr, K: tl.constexpr, T: tl.constexpr, FS: tl.constexpr, TP: tl.constexpr,
    ROOT: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    base = b * T
    lp = logp_ptr + b * L * K
    # Scratch of this request, by node number: parent, depth, rank, previous sibling, row.
    node_parent = scratch_ptr + b * 5 * T
    node_depth = node_parent + T
    node_rank = node_depth + T
    node_previous = node_rank + T
    node_row = node_previous + T

    lowest = -2147483648
    family = tl.arange(0, FS)
    first = tl.load(lp).to(tl.float32)
    # Scalar conditions pick a family number (-1 = none): Triton's interpreter mistypes a splatted condition.
    starts = tl.where(first > float("-inf"), 1, 0)
    founder = family == starts - 1
    order = tl.where(founder, _ordered(first + 0.0), lowest)
    base_score = tl.zeros((FS,), tl.float32)
    depth = tl.where(family == 0, 1, 0)
    rank = tl.zeros((FS,), tl.int32)
    spine = tl.where(family == 0, 1, 0)
    previous = tl.full((FS,), -1, tl.int32)

    tl.store(node_parent, -1)
    tl.store(node_depth, 0)
    tl.store(node_rank, -1)
    tl.store(node_previous, -1)
    tl.store(score_ptr + base, 0.0)
    count = 1
    forced = spine_depth
    tip_score = first
    tip_tie = starts * ((1 << 22) | 1)
    for node in range(1, T):
        best = tl.max(order, 0)
        tie = tl.where(order == best, (depth << 22) | (family << 11) | (rank << 1) | spine, 2147483647)
        chosen = tl.min(tie, 0)
        any_left = best > lowest
        # While the spine is forced, its tip's first child goes in whatever it scores.
        use_tip = (forced > 0) & (tip_tie > 0)
        forced = tl.where(use_tip, forced - 1, 0)
        chosen = tl.where(any_left, tl.where(use_tip, tip_tie, chosen), 0)
        mine = tl.where(use_tip, tip_score, _unordered(best))
        parent = (chosen >> 11) & 2047
        its_depth = chosen >> 22
        its_rank = (chosen >> 1) & 1023
        on_spine = (chosen & 1) & tl.where(its_rank == 0, 1, 0)
        selected = family == tl.where(any_left, parent, -1)

        tl.store(node_parent + node, tl.where(any_left, parent, -1))
        tl.store(node_depth + node, tl.where(any_left, its_depth, -1))
        tl.store(node_rank + node, tl.where(any_left, its_rank, -1))
        tl.store(score_ptr + base + node, mine)
        tl.store(node_previous + node + tl.zeros((FS,), tl.int32), previous, mask=selected)
        count += tl.where(any_left, 1, 0)

        # The family's next candidate ...
        next_rank = rank + 1
        has_next = selected & (next_rank < K)
        step = tl.load(lp + (depth - 1) * K + next_rank, mask=has_next, other=float("-inf")).to(tl.float32)
        value = base_score + step
        value = tl.where(spine == 1, value, value - penalty)
        alive = has_next & (value > float("-inf"))
        order = tl.where(selected, tl.where(alive, _ordered(value + 0.0), lowest), order)
        rank = tl.where(selected, next_rank, rank)
        previous = tl.where(selected, node, previous)
        # ... and the family this node founds.
        deeper = any_left & (its_depth < L)
        child = tl.load(lp + tl.where(deeper, its_depth, 0) * K).to(tl.float32)
        value = mine + child
        value = tl.where(on_spine == 1, value, value - penalty)
        offers = tl.where(deeper & (value > float("-inf")), 1, 0)
        founds = family == tl.where(deeper, node, -1)
        order = tl.where(family == tl.where(offers == 1, node, -1), _ordered(value + 0.0), order)
        base_score = tl.where(founds, mine, base_score)
        depth = tl.where(founds, its_depth + 1, depth)
        spine = tl.where(founds, on_spine, spine)
        grows = (on_spine == 1) & any_left
        tip_tie = tl.where(grows, offers * (((its_depth + 1) << 22) | (node << 11) | 1), tip_tie)
        tip_score = tl.where(grows, value, tip_score)
    tl.debug_barrier()

    # Breadth-first rows: by depth, then by order of entry.
    node = tl.arange(0, TP)
    inside = node < T
    d = tl.load(node_depth + node, mask=inside, other=-1)
    used = inside & (d >= 0)
    row = node
    offset = 0
    for level in range(L + 1):
        member = tl.where(used & (d == level), 1, 0)
        row = tl.where(member == 1, offset + tl.cumsum(member, 0) - 1, row)
        tl.store(level_ptr + b * (L + 2) + level, offset)
        offset += tl.sum(member, 0)
    tl.store(level_ptr + b * (L + 2) + L + 1, offset)
    tl.store(node_row + node, row, mask=inside)
    entered = tl.load(score_ptr + base + node, mask=used, other=0.0)
    parent = tl.load(node_parent + node, mask=used, other=-1)
    its_rank = tl.load(node_rank + node, mask=used, other=-1)
    before_me = tl.load(node_previous + node, mask=used & (d > 0), other=-1)
    tl.store(child_ptr + base + node, -1, mask=inside)
    tl.store(sibling_ptr + base + node, -1, mask=inside)
    tl.debug_barrier()

    is_node = used & (d > 0)
    parent_row = tl.load(node_row + parent, mask=is_node, other=-1)
    sibling_row = tl.load(node_row + before_me, mask=is_node & (before_me >= 0), other=-1)
    tok = tl.load(ids_ptr + b * L * K + (d - 1) * K + its_rank, mask=is_node, other=0)
    tl.store(tok_ptr + base + row, tok, mask=inside & (node > 0))
    if ROOT:
        tl.store(tok_ptr + base, tl.load(root_ptr + b))
    shown_depth = tl.where(used, d, 1)
    tl.store(par_ptr + base + row, parent_row, mask=inside)
    tl.store(dep_ptr + base + row, shown_depth, mask=inside)
    tl.store(rank_ptr + base + row, its_rank, mask=inside)
    tl.store(score_ptr + base + row, entered, mask=inside)
    tl.store(child_ptr + base + parent_row, row, mask=is_node & (its_rank == 0))
    tl.store(sibling_ptr + base + sibling_row, row, mask=is_node & (sibling_row >= 0))
    if POSITIONS:
        prefix = tl.load(prefix_ptr + b).to(tl.int64)
        tl.store(pos_ptr + base + row, prefix + shown_depth, mask=inside)
    tl.store(count_ptr + b, count)
    cut = tl.sum(tl.where(is_node & (its_rank == K - 1), 1, 0), 0)
    tl.store(truncated_ptr + b, tl.where(K > 1, cut, 0))
    tl.debug_barrier()

    current = node
    for hop in tl.static_range(L):
        up = inside & (current >= 0)
        current = tl.load(par_ptr + base + current, mask=up, other=-1)
        tl.store(anc_ptr + (base + node) * L + hop, current, mask=inside)


def tree_build(
    logp: torch.Tensor,
    ids: torch.Tensor,
    budget: int,
    spine_depth: int = 0,
    off_spine_penalty: float = 0.0,
    *,
    out: TreeTables | None = None,
    root: torch.Tensor | None = None,
    prefix_lens: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    scratch: torch.Tensor | None = None,
) -> TreeTables:
    """The twin of ``reference.tree_build``: logp [bs, L, K] float32, ids [bs, L, K] int64 -> tables of budget+1 rows.

    Static-buffer extras for CUDA graphs: ``out`` (tables to fill), ``root`` [bs] int64 (token of row 0),
    ``prefix_lens`` [bs] with ``positions`` [bs, T] int64 (= prefix + depth), ``scratch`` (5*bs*T int32).
    """
    require_runnable(logp, "tree_build")
    bs, levels, candidates = logp.shape
    width = budget + 1
    require(1 <= budget <= MAX_BUDGET, "tree_build", f"budget must be 1..{MAX_BUDGET}, got {budget}.")
    require(candidates <= MAX_CANDIDATES, "tree_build", f"K must be <= {MAX_CANDIDATES}, got {candidates}.")
    require(levels <= MAX_LEVELS, "tree_build", f"depth must be <= {MAX_LEVELS}, got {levels}.")
    require(logp.is_contiguous() and ids.is_contiguous(), "tree_build", "logp and ids must be contiguous.")
    if out is None:
        out = TreeTables.empty(bs, width, levels, logp.device)
    require(out.width == width, "tree_build", f"the tables have {out.width} rows, the budget asks for {width}.")
    if scratch is None:
        scratch = torch.empty((5 * bs * width,), dtype=torch.int32, device=logp.device)
    if bs == 0:
        return out
    slots = np2(max(budget, 2))
    _tree_build_kernel[(bs,)](
        logp, ids, ids if root is None else root, ids if prefix_lens is None else prefix_lens,
        out.tok, out.par, out.dep, out.rank, out.first_child, out.next_sibling, out.anc, out.level_offsets,
        out.score, out.count, out.truncated, ids if positions is None else positions, scratch,
        int(spine_depth), float(off_spine_penalty),
        L=levels, K=candidates, T=width, FS=slots, TP=np2(width),
        ROOT=root is not None, POSITIONS=positions is not None and prefix_lens is not None,
        num_warps=_warps(slots),
    )  # fmt: skip
    return out


def _warps(slots: int) -> int:
    """One warp keeps the two reductions of an iteration inside a warp; only wide frontiers need more."""
    return 1 if slots <= 256 else 4


def variants() -> Iterator[Variant]:
    pointers = {
        "logp_ptr": "*fp32", "ids_ptr": "*i64", "root_ptr": "*i64", "prefix_ptr": "*i64", "tok_ptr": "*i64",
        "par_ptr": "*i32", "dep_ptr": "*i32", "rank_ptr": "*i32", "child_ptr": "*i32", "sibling_ptr": "*i32",
        "anc_ptr": "*i32", "level_ptr": "*i32", "score_ptr": "*fp32", "count_ptr": "*i32",
        "truncated_ptr": "*i32", "pos_ptr": "*i64", "scratch_ptr": "*i32",
        "spine_depth": "i32", "penalty": "fp32",
    }  # fmt: skip
    for budget in (15, 64, 256, 1024):
        slots, width = np2(max(budget, 2)), budget + 1
        constexprs = {
            "L": 15, "K": min(budget, 32), "T": width, "FS": slots, "TP": np2(width),
            "ROOT": True, "POSITIONS": True,
        }  # fmt: skip
        yield Variant(
            "tree_build", _tree_build_kernel, pointers, constexprs, num_warps=_warps(slots), label=f"B{budget}"
        )
