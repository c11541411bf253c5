"""The target's verify input: T rows per request under a tree mask."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from . import ops
from .tables import TreeTables


class DDTreeVerifyInput(DFlashVerifyInput):
    """Linear DFLASH's verify input with a tree: mask, links, and the tables for the recurrent layers."""

    tree_topk = -1  # intel_amx applies custom_mask unless this is 1
    retrieve_index: torch.Tensor | None = None
    retrieve_next_token: torch.Tensor | None = None
    retrieve_next_sibling: torch.Tensor | None = None
    tables: TreeTables | None = None

    @classmethod
    def from_tables(cls, tables: TreeTables, prefix: torch.Tensor) -> DDTreeVerifyInput:
        """tables of bs trees, prefix [bs] tokens already verified -> input of bs * T rows, positions by depth."""
        bs, width = tables.tok.shape
        verify: Any = cls(
            draft_token=tables.tok.reshape(-1),
            positions=(prefix[:, None] + tables.dep).reshape(-1),
            draft_token_num=width,
            topk=2,
            custom_mask=ops.tree_mask(tables).reshape(-1),
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        verify.retrieve_index = torch.arange(bs * width, device=tables.tok.device).view(bs, width)
        verify.retrieve_next_token, verify.retrieve_next_sibling = linked_with_padding(tables)
        verify.tables = tables
        return verify


def linked_with_padding(tables: TreeTables) -> tuple[torch.Tensor, torch.Tensor]:
    """First-child and next-sibling links in which padding rows hang off the root, last (SGLang's own tree
    kernels take unlinked rows for children of the root, too)."""
    first_child, next_sibling = tables.first_child.long(), tables.next_sibling.long()
    bs, width = first_child.shape
    rows = torch.arange(width, device=first_child.device)[None].expand(bs, width)
    padding = rows >= tables.count[:, None]
    next_sibling = torch.where(padding & (rows < width - 1), rows + 1, next_sibling)
    last_root_child = ((tables.par == 0) & ~padding).long().mul(rows).amax(dim=1)
    has_padding = tables.count.long() < width
    for b in has_padding.nonzero().view(-1).tolist():
        first_padding, last = int(tables.count[b]), int(last_root_child[b])
        links = first_child if last == 0 else next_sibling
        links[b, last] = first_padding
    return first_child, next_sibling
