"""Ranks that each hold a part of the vocabulary choose the candidates that one holding all of it would choose."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from sglang_ddtree.draft_tree import VocabularyShards
from sglang_ddtree.kernels.reference.topk_lse import topk_lse
from sglang_ddtree.kernels.topk_lse import TopKScratch


class Ranks:
    """The gather of a tensor-parallel group, between threads; ``as_rank`` is the group as one of them sees it."""

    def __init__(self, size: int) -> None:
        self.size, self.given = size, [torch.empty(0)] * size
        self.barrier = threading.Barrier(size)

    def as_rank(self, rank: int) -> SimpleNamespace:
        def gather(output: torch.Tensor, mine: torch.Tensor) -> None:
            self.given[rank] = mine
            self.barrier.wait(60)
            output.copy_(torch.cat(self.given))
            self.barrier.wait(60)

        return SimpleNamespace(world_size=self.size, all_gather_into_tensor=gather)


@pytest.mark.parametrize("poisoned", [False, True])
def test_two_ranks_choose_as_one(poisoned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    rows, vocabulary, k, ranks = 3, 5000, 8, 2
    logits = torch.randn(rows, vocabulary).round(decimals=1)  # many ties, across the parts too
    if poisoned:
        logits[1, 4321] = torch.nan
    want_logp, want_ids = topk_lse(logits, k)
    part = vocabulary // ranks
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    group = Ranks(ranks)
    # Triton's interpreter is not made for threads: one launch at a time.
    lock = threading.Lock()

    def one(rank: int) -> None:
        shards = VocabularyShards(SimpleNamespace(org_vocab_start_index=rank * part), group.as_rank(rank))
        out = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
        shards.topk_lse(logits[:, rank * part : (rank + 1) * part], k, out, TopKScratch.empty(rows, part, k, "cpu"))
        found.append(out)

    from sglang_ddtree import draft_tree

    for name in ("topk_lse", "merge_shards"):
        original = getattr(draft_tree, name)

        def locked(*args, _original=original, **kwargs):
            with lock:
                return _original(*args, **kwargs)

        monkeypatch.setattr(draft_tree, name, locked)
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == ranks
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    usable = torch.isfinite(want_logp[:, 0])
    assert torch.equal(found[0][1][usable], want_ids[usable])
    torch.testing.assert_close(found[0][0], want_logp)
