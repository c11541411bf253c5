"""Variants that no launcher picks yet, in Triton's interpreter: each against its reference, as a GPU host does first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sglang_ddtree.kernels import gdn_tiles, tree_attention
from sglang_ddtree.kernels.gdn_tree_verify import gdn_tree_verify
from sglang_ddtree.kernels.reference.ancestor_bits import ancestor_bits
from sglang_ddtree.kernels.reference.gdn_tree_verify import gdn_tree_verify as plain_verify
from sglang_ddtree.kernels.reference.prefix_attention import prefix_attention
from sglang_ddtree.kernels.reference.tree_attention import tree_attention as plain_attention
from sglang_ddtree.kernels.reference.tree_build import tree_build
from sglang_ddtree.selftest_data import Random, poisoned, relative
from sglang_ddtree.selftest_state import SMALL, WIDE, _attention, split_heads, verify_error

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on NaN that is put in on purpose
# The interpreter knows no warps: of tiles that differ in nothing else, one.
TILES = list({replace(config, warps=0): config for config in gdn_tiles.CANDIDATES}.values())


@pytest.mark.parametrize("config", TILES, ids=[config.label for config in TILES])
def test_a_verify_tile_computes_what_the_reference_does(config: gdn_tiles.VerifyConfig) -> None:
    for width in (17, 65):
        outcome = verify_error("cpu", WIDE, config, width, correlated=True)
        assert outcome.ok, (width, outcome)


@pytest.mark.parametrize("width", [1, 2, 16, 33, 34, 66, 97])
@pytest.mark.parametrize("rows", [16, 32])
def test_the_root_joins_the_first_tile_at_odd_sizes(width: int, rows: int) -> None:
    config = gdn_tiles.VerifyConfig(rows, 16, 2, 4, root=True, pair=16)
    outcome = verify_error("cpu", SMALL, config, width, correlated=True)
    assert outcome.ok, outcome


def test_rows_of_padding_have_no_root() -> None:
    """One candidate a position makes a tree of 15 nodes; the rows after it have no parent."""
    random = Random(3, "cpu")
    tables = tree_build(*random.marginals(2, 15, 1), 40, 0)
    assert int(tables.count[1]) < tables.width
    q, k, v = split_heads(random.normal(2, tables.width, SMALL.channels), SMALL)
    a, b = random.normal(2, tables.width, 2) - 2, random.normal(2, tables.width, 2)
    state, slots = random.normal(3, 2, 32, 32), torch.tensor([2, 1], dtype=torch.int32)
    arguments = (q, k, v, a, b, random.normal(2) * 0.5, random.normal(2) * 0.1, state, slots, tables)
    out = poisoned((2, tables.width, 2, 32), torch.float32, "cpu")
    gdn_tree_verify(*arguments, config=gdn_tiles.VerifyConfig(16, 32, 1, 4, root=True), out=out)
    assert relative(out, plain_verify(*arguments)) < 1e-3


def test_the_selftest_has_the_attention_after_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reference in the place of FlashAttention, and with one that is wrong."""
    from sglang_ddtree import selftest_state

    def flash(**asked: Any) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = (asked[name].reshape(-1, *asked[name].shape[2:]) for name in ("k_cache", "v_cache"))
        page = asked["k_cache"].shape[1]
        return prefix_attention(
            asked["q"], k, v, asked["page_table"], asked["cache_seqlens"], asked["softmax_scale"], page_size=page
        )

    def cases(kernel: Any) -> list[Any]:
        monkeypatch.setattr(selftest_state, "flash_attention", lambda: kernel)
        return [case for case in selftest_state.cases("cpu", False) if "after FlashAttention" in case.name]

    assert cases(None) == []
    assert len(cases(flash)) == 6
    small = [case for case in cases(flash) if "D=64" in case.name]
    assert all(case.run().ok for case in small)
    assert not cases(lambda **asked: (flash(**asked)[0] * 1.1, flash(**asked)[1]))[0].run().ok


@pytest.mark.parametrize("config", tree_attention.CANDIDATES[256], ids=lambda config: config.label)
def test_an_attention_tile_computes_what_the_reference_does(config: tree_attention.AttentionConfig) -> None:
    outcome = _attention("cpu", 64, config, width=33, group=3, page=1, splits=3)
    assert outcome.ok, outcome


@pytest.mark.parametrize(("width", "page", "bn"), [(17, 1, 32), (65, 16, 64), (1, 1, 32)])
def test_the_tree_is_added_to_what_another_kernel_found_over_the_prefix(width: int, page: int, bn: int) -> None:
    """Requests with a long, no and a short prefix; what belongs to none of them is NaN."""
    random = Random(width, "cpu")
    bs, heads, kv_heads, dim = 3, 6, 2, 64
    tables = random.tree(bs, max(width - 1, 1), 15)
    width, bits = tables.width, ancestor_bits(tables)
    prefix = torch.tensor([83, 0, 7])
    k, v = (random.normal(768, kv_heads, dim, dtype=torch.float16) for _ in range(2))
    q = random.normal(bs * width, heads, dim, dtype=torch.float16)
    per_request = -(-83 // page)
    table = random.permutation(512 // page)[: per_request * bs].view(bs, per_request).int()
    tree = 512 + random.permutation(256)[: bs * width].view(bs, width)
    before = prefix_attention(q, k, v, table, prefix, dim**-0.5, page_size=page)
    arguments = (k, v, table, prefix, tree, bits, dim**-0.5)
    want = plain_attention(q.double(), *arguments, page_size=page)
    out = poisoned(tuple(q.shape), torch.float16, "cpu")
    config = tree_attention.AttentionConfig(64, bn, 4, 2)
    tree_attention.tree_attention(q, *arguments, page_size=page, config=config, out=out, before=before)
    assert relative(out, want) < 6e-3
