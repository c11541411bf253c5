"""From the drafter's hidden states to trees, inside the draft's CUDA graph: head, top-K, build, ancestor bits."""

from __future__ import annotations

from typing import Any

import torch

from .config import DDTreeConfig
from .kernels.ancestor_bits import ancestor_bits
from .kernels.topk_lse import TopKScratch, topk_lse
from .kernels.tree_build import tree_build
from .static_tree import StaticTree


class TreeSampler:
    """Takes the place of linear DFLASH's arg-max sampler at the end of the draft graph."""

    def __init__(self, head: Any, config: DDTreeConfig, tree: StaticTree) -> None:
        weight = head.weight
        shard = getattr(head, "shard_indices", None)
        if shard is not None and int(shard.num_added_elements) != 0:
            raise ValueError("DDTREE does not support added vocabulary in the target's output head: use DFLASH.")
        if not torch.is_floating_point(weight):
            raise ValueError("DDTREE needs an unquantized output head in the target: use DFLASH.")
        self.vocabulary = int(shard.num_org_elements) if shard is not None else int(weight.shape[0])
        self.weight, self.config, self.tree = weight, config, tree
        self.k = min(config.topk, self.vocabulary)
        rows = tree.max_bs * config.max_depth
        device = weight.device
        self.logp = torch.empty((rows, self.k), dtype=torch.float32, device=device)
        self.ids = torch.empty((rows, self.k), dtype=torch.int64, device=device)
        self.scratch = TopKScratch.empty(rows, self.vocabulary, self.k, device)

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None) -> None:
        """hidden_states [bs * block, H] -> the first bs trees of the static tables (row 0's token excepted)."""
        block, depth = self.config.block, self.config.max_depth
        bs = hidden_states.shape[0] // block
        hidden = hidden_states.view(bs, block, -1)[:, 1:].reshape(bs * depth, -1).to(self.weight.dtype)
        logits = torch.matmul(hidden, self.weight[: self.vocabulary].T)
        n = bs * depth
        topk_lse(logits, self.k, out=(self.logp[:n], self.ids[:n]), scratch=self.scratch)
        tables = self.tree.view(bs)
        tree_build(
            self.logp[:n].view(bs, depth, self.k),
            self.ids[:n].view(bs, depth, self.k),
            self.config.nodes,
            self.config.spine_depth,
            self.config.off_spine_penalty,
            out=tables,
            scratch=self.tree.scratch,
        )
        ancestor_bits(tables, out=self.tree.bits[:bs])
        # Requests that only pad a graph have no prefix.
        self.tree.counters[-1] += ((tables.count == 1) & (self.tree.prefix[:bs] > 0)).sum()
