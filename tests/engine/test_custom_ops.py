"""The registered ops: schema, shapes without data, and the values of the functions behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang_ddtree import custom_ops, ops
from sglang_ddtree.selftest import COMMIT, PATH, recurrent_inputs, sample_trees
from sglang_ddtree.tables import TreeTables

CPU = torch.device("cpu")


def arguments() -> dict[str, tuple[Any, ...]]:
    """A small call of every op."""
    torch.manual_seed(0)
    tables, logp = sample_trees(CPU)
    flat = custom_ops.flat(tables)
    slots, track = torch.tensor([5, 2]), (torch.tensor([3, 4]), torch.tensor([1, -1]))
    x = recurrent_inputs()
    replayed = {name: value for name, value in x.items() if name != "q"}
    state, conv, rows = torch.randn(7, 4, 64, 64), torch.randn(7, 96, 3), torch.randn(2, 64, 96)
    q, kv = torch.randn(128, 4, 64), torch.randn(300, 2, 64)
    table, prefix = torch.randperm(172)[:40].view(2, 20).int(), torch.tensor([20, 7])
    return {
        "topk_lse": (torch.randn(5, 400), 8),
        "tree_build": (logp, torch.arange(240).view(2, 15, 8), 20, 3, 0.5),
        "ancestor_bits": (flat,),
        "tree_mask": (flat,),
        "walk": (torch.randint(0, 9, (2, 64)), flat),
        "tree_attention": (q, kv, kv.clone(), table, prefix, 172 + torch.arange(128).view(2, 64), ops.ancestor_bits(tables), 0.125, 1),
        "conv_tree": (rows, conv, torch.randn(96, 4), None, slots, flat, "silu"),
        "gdn_tree_verify": (*x.values(), state, slots, flat),
        "gdn_replay_commit": (*replayed.values(), PATH, COMMIT, state, slots, *track),
        "conv_commit": (rows, PATH, COMMIT, conv, slots, None, None),
        "compact_kv": ([kv, kv.clone()], torch.arange(128).view(2, 64), PATH, COMMIT),
    }  # fmt: skip


def test_every_op_is_registered() -> None:
    assert set(arguments()) == set(ops.NAMES)
    assert all(hasattr(torch.ops.sglang_ddtree, name) for name in ops.NAMES)


@pytest.mark.parametrize("name", ops.NAMES)
def test_schema_and_shapes_are_those_of_the_op(name: str) -> None:
    torch.library.opcheck(
        getattr(torch.ops.sglang_ddtree, name).default, arguments()[name], test_utils=("test_schema", "test_faketensor")
    )


def test_a_registered_op_gives_the_values_of_the_function() -> None:
    target, flat = arguments()["walk"]
    want = ops.walk(target, TreeTables(*flat))
    for got, value in zip(torch.ops.sglang_ddtree.walk(target, flat), want, strict=True):
        assert torch.equal(got, value)
