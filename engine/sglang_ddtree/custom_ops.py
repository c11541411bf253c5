"""The ops as ``torch.ops.sglang_ddtree.*``: with schema and shape functions, for torch.compile, export and other engines.

``import sglang_ddtree.custom_ops`` registers them.  A tree travels as the list of its tables in the order of TreeTables'
fields.  The engine's own step calls the launchers instead: it writes into buffers at fixed addresses, inside CUDA graphs
where a dispatcher has nothing to add, and outside of them torch's dispatch would cost it host time per op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor
from torch.library import custom_op

from . import ops
from .tables import TreeTables

NAMESPACE = "sglang_ddtree"


def flat(tables: TreeTables) -> list[Tensor]:
    """A tree as an op takes it."""
    return [getattr(tables, field.name) for field in fields(TreeTables)]


@custom_op(f"{NAMESPACE}::topk_lse", mutates_args=())
def topk_lse(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return ops.topk_lse(logits, k)


@topk_lse.register_fake
def _(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int64)


@custom_op(f"{NAMESPACE}::tree_build", mutates_args=())
def tree_build(logp: Tensor, ids: Tensor, budget: int, spine_depth: int, off_spine_penalty: float) -> list[Tensor]:
    return flat(ops.tree_build(logp, ids, budget, spine_depth, off_spine_penalty))


@tree_build.register_fake
def _(logp: Tensor, ids: Tensor, budget: int, spine_depth: int, off_spine_penalty: float) -> list[Tensor]:
    return flat(TreeTables.empty(logp.shape[0], budget + 1, logp.shape[1], logp.device))


@custom_op(f"{NAMESPACE}::ancestor_bits", mutates_args=())
def ancestor_bits(tables: Sequence[Tensor]) -> Tensor:
    return ops.ancestor_bits(TreeTables(*tables))


@ancestor_bits.register_fake
def _(tables: Sequence[Tensor]) -> Tensor:
    bs, width = tables[0].shape
    return tables[0].new_empty((bs, width, (width + 63) // 64))


@custom_op(f"{NAMESPACE}::tree_mask", mutates_args=())
def tree_mask(tables: Sequence[Tensor]) -> Tensor:
    return ops.tree_mask(TreeTables(*tables))


@tree_mask.register_fake
def _(tables: Sequence[Tensor]) -> Tensor:
    bs, width = tables[0].shape
    return tables[0].new_empty((bs, width, width), dtype=torch.bool)


@custom_op(f"{NAMESPACE}::walk", mutates_args=())
def walk(target_tok: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return ops.walk(target_tok, TreeTables(*tables))


@walk.register_fake
def _(target_tok: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bs, block = target_tok.shape[0], TreeTables(*tables).anc.shape[2] + 1

    def new(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return target_tok.new_empty(shape, dtype=dtype)

    return new(bs, block), new(bs, dtype=torch.int32), new(bs), new(bs, block)


@custom_op(f"{NAMESPACE}::tree_attention", mutates_args=())
def tree_attention(
    q: Tensor, k_buffer: Tensor, v_buffer: Tensor, slot_table: Tensor, prefix_lens: Tensor, tree_slots: Tensor,
    bits: Tensor, scale: float, page_size: int,
) -> Tensor:  # fmt: skip
    return ops.tree_attention(
        q, k_buffer, v_buffer, slot_table, prefix_lens, tree_slots, bits, scale, page_size=page_size
    )


@tree_attention.register_fake
def _(
    q: Tensor, k_buffer: Tensor, v_buffer: Tensor, slot_table: Tensor, prefix_lens: Tensor, tree_slots: Tensor,
    bits: Tensor, scale: float, page_size: int,
) -> Tensor:  # fmt: skip
    return torch.empty_like(q)


@custom_op(f"{NAMESPACE}::conv_tree", mutates_args=())
def conv_tree(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, slots: Tensor, tables: Sequence[Tensor],
    activation: str | None,
) -> Tensor:  # fmt: skip
    return ops.conv_tree(x, conv_state, weight, bias, slots, TreeTables(*tables), activation)


@conv_tree.register_fake
def _(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, slots: Tensor, tables: Sequence[Tensor],
    activation: str | None,
) -> Tensor:  # fmt: skip
    return x.new_empty(x.shape)


@custom_op(f"{NAMESPACE}::gdn_tree_verify", mutates_args=())
def gdn_tree_verify(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, slots: Tensor,
    tables: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    return ops.gdn_tree_verify(q, k, v, a, b, a_log, dt_bias, state, slots, TreeTables(*tables))


@gdn_tree_verify.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, slots: Tensor,
    tables: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    return v.new_empty(v.shape)


# These change their buffers and return nothing, so they need no shape function.
@custom_op(f"{NAMESPACE}::gdn_replay_commit", mutates_args=("state",))
def gdn_replay_commit(
    k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, path: Tensor, commit_lens: Tensor,
    state: Tensor, slots: Tensor, track_slots: Tensor | None, track_steps: Tensor | None,
) -> None:  # fmt: skip
    ops.gdn_replay_commit(k, v, a, b, a_log, dt_bias, path, commit_lens, state, slots, track_slots, track_steps)


@custom_op(f"{NAMESPACE}::conv_commit", mutates_args=("conv_state",))
def conv_commit(
    x: Tensor, path: Tensor, commit_lens: Tensor, conv_state: Tensor, slots: Tensor, track_slots: Tensor | None,
    track_steps: Tensor | None,
) -> None:  # fmt: skip
    ops.conv_commit(x, path, commit_lens, conv_state, slots, track_slots, track_steps)


@custom_op(f"{NAMESPACE}::compact_kv", mutates_args=("buffers",))
def compact_kv(buffers: Sequence[Tensor], loc: Tensor, path: Tensor, commit_lens: Tensor) -> None:
    ops.compact_kv(list(buffers), loc, path, commit_lens)


for _mutating in (gdn_replay_commit, conv_commit, compact_kv):
    _mutating.register_fake(lambda *args, **kwargs: None)
