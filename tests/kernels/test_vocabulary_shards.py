"""Two processes that each hold half of the vocabulary build the tree that one holding all of it would build."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sglang_ddtree.config import DDTreeConfig
from sglang_ddtree.draft_tree import TreeSampler, VocabularyShards
from sglang_ddtree.kernels.reference.topk_lse import topk_lse
from sglang_ddtree.kernels.topk_lse import TopKScratch
from sglang_ddtree.kernels.tree_build import tree_build
from sglang_ddtree.static_tree import StaticTree
from sglang_ddtree.target_tokens import agree_on_samples, target_tokens

RANKS, ROWS, VOCABULARY, K = 2, 3, 5000, 8
Work = Callable[[int, Any], list[torch.Tensor]]


def on_two_ranks(folder: Path, work: Work) -> list[list[torch.Tensor]]:
    """What ``work(rank, group)`` gives in each of two processes; group answers as SGLang's tensor-parallel group."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_one_rank, args=(folder, rank, work)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def _one_rank(folder: Path, rank: int, work: Work) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    group = SimpleNamespace(
        world_size=RANKS,
        all_gather_into_tensor=dist.all_gather_into_tensor,
        broadcast=lambda tensor, src: dist.broadcast(tensor, src=src),
    )
    torch.save(work(rank, group), folder / f"{rank}.pt")
    dist.destroy_process_group()


def with_ties(poisoned: bool) -> torch.Tensor:
    """Logits [ROWS, V] with many ties, across the two halves too; poisoned: one row has a NaN."""
    torch.manual_seed(2)
    logits = torch.randn(ROWS, VOCABULARY).round(decimals=1)
    if poisoned:
        logits[1, 4321] = torch.nan
    return logits


@pytest.mark.parametrize("poisoned", [False, True])
def test_two_ranks_build_the_tree_of_one(poisoned: bool, tmp_path: Path) -> None:
    logits, part = with_ties(poisoned), VOCABULARY // RANKS

    def work(rank: int, group: Any) -> list[torch.Tensor]:
        shards = VocabularyShards(SimpleNamespace(org_vocab_start_index=rank * part), group)
        out = torch.empty(ROWS, K), torch.empty(ROWS, K, dtype=torch.int64)
        shards.topk_lse(logits[:, rank * part : (rank + 1) * part], K, out, TopKScratch.empty(ROWS, part, K, "cpu"))
        tables = tree_build(out[0][None], out[1][None], 20)
        return [*out, *(getattr(tables, name) for name in ("tok", "par", "dep", "count"))]

    first, second = on_two_ranks(tmp_path, work)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    want_logp, want_ids = topk_lse(logits, K)
    usable = torch.isfinite(want_logp[:, 0])
    assert torch.equal(first[1][usable], want_ids[usable])
    torch.testing.assert_close(first[0], want_logp)
    whole = tree_build(want_logp[None], want_ids[None], 20)
    assert torch.equal(first[2][:, 1:], whole.tok[:, 1:])
    assert torch.equal(first[3], whole.par)


def head_of(weight: torch.Tensor, rank: int, ranks: int) -> SimpleNamespace:
    """One rank's part of an output head as SGLang cuts it: equal parts, the last one padded."""
    part = -(-len(weight) // ranks)
    mine = weight[rank * part : (rank + 1) * part]
    padded = torch.cat([mine, torch.full((part - len(mine), weight.shape[1]), 1e3)])  # padding that must never win
    shard = SimpleNamespace(
        num_added_elements=0,
        num_org_elements=len(mine),
        num_org_elements_padded=part,
        org_vocab_start_index=rank * part,
    )
    return SimpleNamespace(weight=padded, shard_indices=shard, org_vocab_size=len(weight))


def test_samplers_of_two_ranks_fill_the_tables_of_one(tmp_path: Path) -> None:
    bs, block, hidden_size = 2, 4, 32
    torch.manual_seed(3)
    weight, hidden = torch.randn(1001, hidden_size), torch.randn(bs * block, hidden_size)
    config = DDTreeConfig.read(block, 13)

    def tables(head: Any, group: Any) -> list[torch.Tensor]:
        tree = StaticTree(bs, 13, block - 1, "cpu")
        tree.begin(torch.full((bs,), 5))
        TreeSampler(head, config, tree, group)(hidden)
        return [getattr(tree.view(bs), name)[:, 1:].clone() for name in ("tok", "par", "dep")]

    first, second = on_two_ranks(tmp_path, lambda rank, group: tables(head_of(weight, rank, RANKS), group))
    one = tables(head_of(weight, 0, 1), SimpleNamespace(world_size=1))
    for a, b, c in zip(first, second, one, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_two_ranks_take_the_same_samples(tmp_path: Path) -> None:
    width = 4
    sampling = SimpleNamespace(
        is_all_greedy=False, sampling_seed=None, temperatures=torch.ones(2, 1), top_ks=torch.tensor([1 << 30, 1]),
        need_top_k_sampling=False, need_top_p_sampling=False, need_min_p_sampling=False,
    )  # fmt: skip

    def work(rank: int, group: Any) -> list[torch.Tensor]:
        logits = torch.zeros(2 * width, 1000)
        torch.manual_seed(rank)
        own = target_tokens(logits, sampling, width, torch.zeros(2, width, dtype=torch.int64))
        shared = own.clone()
        agree_on_samples(shared, sampling, group)
        return [own, shared]

    (own, shared), (other_own, other_shared) = on_two_ranks(tmp_path, work)
    assert not torch.equal(own, other_own)
    assert torch.equal(shared, own)
    assert torch.equal(shared, other_shared)
