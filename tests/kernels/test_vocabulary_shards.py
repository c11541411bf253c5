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
from sglang_ddtree.draft_tree import VocabularyShards
from sglang_ddtree.kernels.reference.topk_lse import topk_lse
from sglang_ddtree.kernels.topk_lse import TopKScratch
from sglang_ddtree.kernels.tree_build import tree_build
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
