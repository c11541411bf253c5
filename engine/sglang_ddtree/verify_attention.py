"""The target's attention in a verify pass: our tree attention over the backend's own KV pool and page table.

The backend keeps believing in a chain of T tokens: its metadata (page table, lengths) is the same for a tree, and
its other forward modes stay untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kernels.common import device_limit
from .kernels.tree_attention import (
    AFTER_PREFIX,
    CONFIGS,
    AttentionScratch,
    pick_config,
    pick_splits,
    tree_attention,
)  # fmt: skip
from .prefix_attention import (
    PrefixKernel,
    flash_attention,
    prefix_attention,
    prefix_parts,
)
from .static_tree import StaticTree


def refusal(layer: Any) -> str | None:
    """One sentence where a target layer needs what the tree attention does not have."""
    if getattr(layer, "sliding_window_size", None) not in (None, -1):
        return "DDTREE does not support sliding-window attention in the target yet: use DFLASH."
    if getattr(layer, "logit_cap", 0):
        return "DDTREE does not support capped attention logits in the target: use DFLASH."
    if layer.qk_head_dim != layer.v_head_dim or layer.qk_head_dim not in CONFIGS:
        sizes = ", ".join(map(str, CONFIGS))
        return f"DDTREE's tree attention knows head sizes {sizes}, and this target has {layer.qk_head_dim}."
    return None


def widen_page_table(backend: Any, tokens: int) -> None:
    """Make room for ``tokens`` beyond the context in each row of FlashAttention's page table, before it is allocated.

    SGLang fills a row with the slots of prefix + T tokens whatever the row's width, so near the context limit the rest
    would land in the next request's row while that one is being written.
    """
    if not hasattr(backend, "max_num_pages"):
        return
    backend.max_context_len += tokens
    backend.max_num_pages = -(-backend.max_context_len // backend.page_size)


def prefix_kernel(name: str, backend: Any, deterministic: bool = False) -> PrefixKernel | None:
    """Who reads the prefix for this backend on this machine; None: our own kernel for every batch.

    ``auto``: FlashAttention for large batches where it is there, and one kernel for all where outputs should not depend on the batch;
    ``fa3``: always; ``own``: never.
    """
    if name == "own" or (name == "auto" and deterministic):
        return None
    flash = flash_attention() if hasattr(backend, "max_num_pages") else None
    if flash is not None:
        return PrefixKernel(flash, always=name == "fa3")
    if name == "auto":
        return None
    raise ValueError(
        "SGLANG_DDTREE_PREFIX=fa3 needs --attention-backend fa3 on a GPU of compute capability 9.0: leave it out."
    )


class TreeVerifyAttention:
    """Replaces ``forward_extend`` of one full-attention backend for verify passes."""

    def __init__(self, backend: Any, tree: StaticTree, prefix: PrefixKernel | None = None) -> None:
        self.backend, self.tree, self.prefix = backend, tree, prefix
        # The backend's metadata has the first rows of the widest tree's requests only.
        self._first_rows = {
            width: torch.arange(0, tree.max_bs * width + 1, width, dtype=torch.int32, device=tree.prefix.device)
            for width in (tree.widths if prefix is not None else ())
        }
        self._prefill = backend.forward_extend
        # Graphs captured earlier keep using the scratch they saw, so no scratch is ever freed.
        self._scratches: list[AttentionScratch] = []
        backend.forward_extend = self.forward_extend

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """q [bs*T, HQ*D] -> [bs*T, HQ*D], as the backend's own method; k, v go to the pool first."""
        if not forward_batch.forward_mode.is_target_verify():
            return self._prefill(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)
        pool = self.backend.token_to_kv_pool
        if save_kv_cache and k is not None:
            self._store(pool, layer, forward_batch.out_cache_loc, k, v)
        k_buffer, v_buffer = pool.get_kv_buffer(layer.layer_id)
        heads, dim = layer.tp_q_head_num, layer.head_dim
        rows = q.shape[0]
        bs = rows // self.tree.width
        table, starts, page_size = self._table()
        kv_heads = k_buffer.shape[1]
        group = heads // kv_heads
        per_head = q.view(rows, heads, dim)
        if self.prefix is not None and self.prefix.serves(per_head, k_buffer, bs):
            config, splits = AFTER_PREFIX, 1
            before = self._before(self.prefix.flash, per_head, k_buffer, v_buffer, table, bs, layer.scaling)
        else:
            config, before = pick_config(dim, device_limit(q)), None
            splits = pick_splits(bs, self.tree.width, kv_heads, group, config)
        out = tree_attention(
            per_head, k_buffer, v_buffer, table, self.tree.prefix[:bs],
            forward_batch.out_cache_loc.view(bs, -1), self.tree.bits[:bs], layer.scaling,
            starts=starts, page_size=page_size, splits=splits, config=config,
            scratch=self._scratch_for(rows, heads, dim, splits, q.device), before=before,
        )  # fmt: skip
        return out.view(rows, heads * dim)

    def _before(
        self,
        flash: Callable[..., Any],
        q: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        table: torch.Tensor,
        bs: int,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The prefix's part from FlashAttention, over the page table of the backend's metadata."""
        starts = self._first_rows[self.tree.width][: bs + 1]
        lengths = self.tree.prefix[:bs].to(torch.int32)
        kv_heads = k_buffer.shape[1]
        return prefix_attention(
            flash, q, k_buffer, v_buffer, table, lengths, starts, scale, page_size=int(self.backend.page_size),
            parts=prefix_parts(bs, self.tree.width, kv_heads, q.shape[1] // kv_heads),
        )  # fmt: skip

    def _store(self, pool: Any, layer: Any, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        pool.set_kv_buffer(layer, KVWriteLoc(slots, None), k, v, layer.k_scale, layer.v_scale)

    def _table(self) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """(slot table, starts, page size) of the batch whose metadata the backend prepared last."""
        metadata = self.backend.forward_metadata
        page_table = getattr(metadata, "page_table", None)
        if page_table is not None:  # FlashAttention
            return page_table, None, int(self.backend.page_size)
        return metadata.kv_indices, metadata.kv_indptr, 1  # Triton

    def _scratch_for(
        self, rows: int, heads: int, dim: int, splits: int, device: torch.device
    ) -> AttentionScratch | None:
        """A scratch shared by all layers, large enough for these rows."""
        if splits == 1:
            return None
        need = rows * heads * splits * dim
        for scratch in self._scratches:
            if scratch.part.numel() >= need:
                return scratch
        self._scratches.append(AttentionScratch.empty(rows, heads, dim, splits, device))
        return self._scratches[-1]
