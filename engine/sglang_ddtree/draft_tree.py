"""From the drafter's hidden states to trees, inside the draft's CUDA graph: head, top-K, build, ancestor bits."""

from __future__ import annotations

from typing import Any

import torch

from .config import DDTreeConfig
from .kernels.ancestor_bits import ancestor_bits
from .kernels.topk_lse import TopKScratch, merge_shards, topk_lse
from .kernels.tree_build import tree_build
from .static_tree import StaticTree


class VocabularyShards:
    """Top-K over a vocabulary whose parts lie on several ranks; every rank gets the same bits, so the same tree."""

    def __init__(self, shard: Any, group: Any) -> None:
        self.group, self.first_id = group, int(shard.org_vocab_start_index)

    def topk_lse(
        self, logits: torch.Tensor, k: int, out: tuple[torch.Tensor, torch.Tensor], scratch: TopKScratch
    ) -> None:
        """logits [n, part of V] -> out (logp [n, k], ids [n, k]) over the whole vocabulary."""
        rows = logits.shape[0]
        lse = torch.empty((rows,), dtype=torch.float32, device=logits.device)
        values, ids = topk_lse(logits, k, scratch=scratch, first_id=self.first_id, lse_out=lse)
        merge_shards(self._gather(values), self._gather(ids.int()), self._gather(lse), out=out)

    def _gather(self, mine: torch.Tensor) -> torch.Tensor:
        """[n, ..] -> [ranks, n, ..]"""
        ranks = int(self.group.world_size)
        everyone = torch.empty((ranks * mine.shape[0], *mine.shape[1:]), dtype=mine.dtype, device=mine.device)
        self.group.all_gather_into_tensor(everyone, mine.contiguous())
        return everyone.view(ranks, *mine.shape)


class TreeSampler:
    """Takes the place of linear DFLASH's arg-max sampler at the end of the draft graph."""

    def __init__(self, head: Any, config: DDTreeConfig, tree: StaticTree, group: Any) -> None:
        """group: SGLang's tensor-parallel group, whose ranks each hold a part of the head's vocabulary."""
        weight = head.weight
        shard = getattr(head, "shard_indices", None)
        if shard is not None and int(shard.num_added_elements) != 0:
            raise ValueError("DDTREE does not support added vocabulary in the target's output head: use DFLASH.")
        if not torch.is_floating_point(weight):
            raise ValueError("DDTREE needs an unquantized output head in the target: use DFLASH.")
        self.vocabulary = int(shard.num_org_elements) if shard is not None else int(weight.shape[0])
        self.weight, self.config, self.tree = weight, config, tree
        self.shards = VocabularyShards(shard, group) if int(group.world_size) > 1 else None
        smallest = self.vocabulary
        if self.shards is not None:  # the last rank's part may be smaller, and every rank needs the same K
            smallest = int(head.org_vocab_size) - (int(group.world_size) - 1) * int(shard.num_org_elements_padded)
        self.k = min(config.topk, smallest)
        rows = tree.max_bs * config.max_depth
        device = weight.device
        self.logp = torch.empty((rows, self.k), dtype=torch.float32, device=device)
        self.ids = torch.empty((rows, self.k), dtype=torch.int64, device=device)
        self.scratch = TopKScratch.empty(rows, self.vocabulary, self.k, device)
        self.width = config.widths[-1]  # in force; the tree's tables must be of the same width

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None) -> None:
        """hidden_states [bs * block, H] -> the first bs trees of the static tables (row 0's token excepted)."""
        block, depth = self.config.block, self.config.max_depth
        bs = hidden_states.shape[0] // block
        hidden = hidden_states.view(bs, block, -1)[:, 1:].reshape(bs * depth, -1).to(self.weight.dtype)
        logits = torch.matmul(hidden, self.weight[: self.vocabulary].T)
        n = bs * depth
        out = (self.logp[:n], self.ids[:n])
        if self.shards is None:
            topk_lse(logits, self.k, out=out, scratch=self.scratch)
        else:
            self.shards.topk_lse(logits, self.k, out, self.scratch)
        tables = self.tree.view(bs)
        tree_build(
            self.logp[:n].view(bs, depth, self.k),
            self.ids[:n].view(bs, depth, self.k),
            self.width.nodes,
            self.width.spine,
            self.config.off_spine_penalty,
            out=tables,
            scratch=self.tree.scratch,
        )
        ancestor_bits(tables, out=self.tree.bits[:bs])
        # Requests that only pad a graph have no prefix.
        self.tree.counters[-1] += ((tables.count == 1) & (self.tree.prefix[:bs] > 0)).sum()
