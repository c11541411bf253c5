"""The target's attention in a verify pass, over a backend's pool and page table, with either kernel for the prefix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_ddtree import verify_attention
from sglang_ddtree.kernels.reference.ancestor_bits import ancestor_bits
from sglang_ddtree.kernels.reference.prefix_attention import prefix_attention
from sglang_ddtree.kernels.reference.tree_attention import tree_attention
from sglang_ddtree.prefix_attention import ARGUMENTS, PrefixKernel, prefix_parts, takes_what_we_give
from sglang_ddtree.selftest_data import Random, relative
from sglang_ddtree.static_tree import StaticTree
from sglang_ddtree.verify_attention import TreeVerifyAttention, prefix_kernel

BS, WIDTH, HEADS, KV_HEADS, DIM, SLOTS = 3, 17, 4, 2, 64, 512
LAYER = SimpleNamespace(layer_id=0, tp_q_head_num=HEADS, head_dim=DIM, scaling=DIM**-0.5)


def flash(**asked: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
    """FlashAttention's answers from the reference; it is asked for what its documentation says it takes."""
    assert set(asked) == set(ARGUMENTS)
    lengths, starts, k = asked["cache_seqlens"], asked["cu_seqlens_q"], asked["k_cache"]
    assert lengths.dtype == starts.dtype == asked["page_table"].dtype == torch.int32
    assert torch.equal(starts, torch.arange(0, BS * WIDTH + 1, WIDTH, dtype=torch.int32))
    assert not asked["causal"]
    assert asked["return_softmax_lse"]
    flat = [asked[name].reshape(-1, KV_HEADS, DIM) for name in ("k_cache", "v_cache")]
    out, lse = prefix_attention(
        asked["q"], *flat, asked["page_table"], lengths, asked["softmax_scale"], page_size=k.shape[1]
    )
    return out, lse, None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on the NaN of a request without a prefix
@pytest.mark.parametrize("kernel", [None, PrefixKernel(flash, always=True)])
@pytest.mark.parametrize("page", [1, 16])
def test_rows_see_their_prefix_and_their_ancestors(kernel: Any, page: int) -> None:
    random = Random(5, "cpu")
    tree = StaticTree(BS + 1, [WIDTH, 2 * WIDTH], 15, "cpu")
    tree.use(0)
    tables = random.tree(BS, WIDTH - 1, 15)
    tree.bits[:BS] = bits = ancestor_bits(tables)
    prefix = torch.tensor([70, 0, 9])
    tree.begin(prefix)
    k, v = (random.normal(SLOTS, KV_HEADS, DIM, dtype=torch.float16) for _ in range(2))
    pages = random.permutation(256 // page)[: BS * (80 // page)].view(BS, -1).int()
    rows = 256 + random.permutation(256)[: BS * WIDTH].view(BS, WIDTH)
    widest = torch.arange(0, (BS + 1) * 2 * WIDTH + 1, 2 * WIDTH, dtype=torch.int32)  # as SGLang's metadata has them
    backend = SimpleNamespace(
        forward_extend=lambda *_, **__: "prefill", page_size=page,
        token_to_kv_pool=SimpleNamespace(get_kv_buffer=lambda layer: (k, v)),
        forward_metadata=SimpleNamespace(page_table=pages, cu_seqlens_q=widest),
    )  # fmt: skip
    TreeVerifyAttention(backend, tree, kernel)
    q = random.normal(BS * WIDTH, HEADS * DIM, dtype=torch.float16)

    def ask(verify: bool) -> Any:
        mode = SimpleNamespace(is_target_verify=lambda: verify)
        batch = SimpleNamespace(forward_mode=mode, out_cache_loc=rows.view(-1))
        return backend.forward_extend(q, None, None, LAYER, batch)

    assert ask(False) == "prefill"
    per_head = q.view(BS * WIDTH, HEADS, DIM)
    want = tree_attention(per_head.double(), k, v, pages, prefix, rows, bits, DIM**-0.5, page_size=page)
    assert relative(ask(True).view_as(per_head), want) < 6e-3


def test_flash_attention_is_refused_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with_table, without = SimpleNamespace(max_num_pages=4), SimpleNamespace()
    assert prefix_kernel("own", without) is None
    assert prefix_kernel("auto", with_table) is None
    with pytest.raises(ValueError, match="needs --attention-backend fa3"):
        prefix_kernel("fa3", with_table)  # this machine has no such GPU
    monkeypatch.setattr(verify_attention, "flash_attention", lambda: flash)
    assert prefix_kernel("fa3", with_table) == PrefixKernel(flash, always=True)
    assert prefix_kernel("auto", with_table) == PrefixKernel(flash)
    assert prefix_kernel("auto", with_table, deterministic=True) is None
    assert prefix_kernel("auto", without) is None
    with pytest.raises(ValueError, match="needs --attention-backend fa3"):
        prefix_kernel("fa3", without)


def test_small_batches_and_caches_of_another_type_are_left_to_our_own_kernel() -> None:
    kernel = PrefixKernel(flash)
    q = torch.zeros(256, 1, 64, dtype=torch.bfloat16)
    assert kernel.serves(q, q, 4)
    assert not kernel.serves(q, q, 1)
    assert not kernel.serves(q[:255], q, 4)
    assert not kernel.serves(q, q.to(torch.float8_e5m2), 4)


def test_a_function_with_other_arguments_is_not_called() -> None:
    def renamed(q: Any, k_cache: Any, v_cache: Any, block_table: Any, cache_seqlens: Any) -> None: ...

    assert takes_what_we_give(flash)
    assert not takes_what_we_give(renamed)


@pytest.mark.parametrize(("bs", "width", "parts"), [(8, 32, 0), (8, 64, 1), (64, 256, 1), (1, 256, 0)])
def test_a_full_gpu_of_132_multiprocessors_needs_no_parts(bs: int, width: int, parts: int) -> None:
    assert prefix_parts(bs, width, kv_heads=4, group=6) == parts
