"""The kernel that tells what narrower trees would have accepted, against its plain form."""

from __future__ import annotations

import pytest
import torch
from sglang_ddtree.entry_order import entry_order as plain
from sglang_ddtree.kernels.entry_order import entry_order
from sglang_ddtree.kernels.reference.tree_build import tree_build
from sglang_ddtree.kernels.reference.walk import walk
from sglang_ddtree.selftest_data import Random, deepest_path


@pytest.mark.parametrize(("nodes", "spine", "ties"), [(15, 15, False), (40, 0, True), (63, 6, False), (20, 3, True)])
def test_orders_and_chains_are_those_of_the_plain_form(nodes: int, spine: int, ties: bool) -> None:
    random = Random(nodes, "cpu")
    logp, ids = random.marginals(3, 15, 8, ties=ties)
    logp[1, 4:] = -torch.inf  # a tree with padding
    tables = tree_build(logp, ids, nodes, spine)
    deep, lengths = deepest_path(tables)
    path, short, _, _ = walk(random.targets(tables), tables)
    for rows, commit in ((deep, lengths), (path, short)):
        assert torch.equal(entry_order(tables, rows, commit, spine), plain(tables, rows, commit, spine))
