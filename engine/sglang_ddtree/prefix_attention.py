"""FlashAttention-3 over the committed prefix of verify rows, for ``tree_attention(before=...)`` to add the tree to."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .kernels.common import MULTIPROCESSORS

# Where SGLang's lines keep it: 0.5.16; later ones; its kernel package.
PLACES = ("sglang.jit_kernel.flash_attention", "sglang.kernels.ops.attention.flash_attention", "sgl_kernel.flash_attn")

FLASH_ROWS = 128  # rows of one of its programs at head size 256: the query heads of a KV head side by side
# From here on it costs nothing at 256 tokens of context on an H200 and saves a third or more at 4,096.
FEWEST_ROWS, FEWEST_REQUESTS = 256, 4


ARGUMENTS = (
    "q", "k_cache", "v_cache", "page_table", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale", "causal",
    "num_splits", "return_softmax_lse",
)  # fmt: skip


@dataclass(frozen=True)
class PrefixKernel:
    """FlashAttention, for the batches where it pays or for all."""

    flash: Callable[..., Any]
    always: bool = False

    def serves(self, q: torch.Tensor, k_buffer: torch.Tensor, bs: int) -> bool:
        """Whether it takes these rows; a cache of another type than q's is left to our own kernel."""
        return (self.always or pays(bs, q.shape[0])) and q.dtype == k_buffer.dtype


def pays(bs: int, rows: int) -> bool:
    """Whether FlashAttention is the faster one for ``rows`` rows of ``bs`` requests together."""
    return bs >= FEWEST_REQUESTS and rows >= FEWEST_ROWS


def prefix_parts(bs: int, width: int, kv_heads: int, group: int) -> int:
    """Parts of the prefix; 0 leaves them to FlashAttention, which chooses too many where one fills the GPU already."""
    programs = bs * kv_heads * -(-width * group // FLASH_ROWS)
    return 1 if 2 * programs > MULTIPROCESSORS else 0


def flash_attention() -> Callable[..., Any] | None:
    """SGLang's FlashAttention over a paged cache, or None where this machine has none."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return None
    for place in PLACES:
        try:
            found: Callable[..., Any] = importlib.import_module(place).flash_attn_with_kvcache
        except (ImportError, AttributeError):
            continue
        if takes_what_we_give(found):
            return found
    return None


def takes_what_we_give(flash: Callable[..., Any]) -> bool:
    """Whether this line's function has every argument of ``prefix_attention``'s call."""
    known = inspect.signature(flash).parameters
    return set(ARGUMENTS) <= set(known) or any(p.kind is p.VAR_KEYWORD for p in known.values())


def prefix_attention(
    flash: Callable[..., Any],
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slot_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    query_starts: torch.Tensor,
    scale: float,
    *,
    page_size: int = 1,
    parts: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The twin of ``reference.prefix_attention``: (output [bs*T, HQ, D], log-sum-exp [HQ, bs*T]).

    prefix_lens [bs] and query_starts [bs + 1] (multiples of T) are int32; ``parts`` of the prefix, 0 leaves it to FlashAttention.
    """
    bs = prefix_lens.shape[0]
    pages = (-1, page_size, *k_buffer.shape[1:])
    out, lse, *_ = flash(
        q=q, k_cache=k_buffer.view(pages), v_cache=v_buffer.view(pages), page_table=slot_table, cache_seqlens=prefix_lens,
        cu_seqlens_q=query_starts, max_seqlen_q=q.shape[0] // bs, softmax_scale=scale, causal=False,
        num_splits=parts, return_softmax_lse=True,
    )  # fmt: skip
    return out, lse
