"""Book-keeping of KV slots, as SGLang's CPU path expects it from ``sgl_kernel``.

``req_to_token`` is [requests, columns]: the KV slot of each token of each request.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """req_to_token[r, start:end] takes the next slots of the flat ``out_cache_loc``, request after request."""
    begin = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        count = end - start
        req_to_token[row, start:end] = out_cache_loc[begin : begin + count].to(req_to_token.dtype)
        begin += count


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The inverse: flat ``out_cache_loc`` takes req_to_token[r, start:end], request after request."""
    begin = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        count = end - start
        out_cache_loc[begin : begin + count] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        begin += count


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """``out_cache_loc`` takes the topk * num_steps slots that follow each request's tokens."""
    count = topk * num_steps
    for i, (row, start) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out_cache_loc[i * count : (i + 1) * count] = req_to_token[row, start : start + count].to(out_cache_loc.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """bonus_tokens[b] = the last accepted token of request b; its tokens start at b * accept_stride."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype))


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Packs the slots of the accepted rows (accept_index > -1) to the front of ``accept_out_cache_loc``."""
    index = accept_index.reshape(-1)
    rows = index[index > -1].long()
    accept_out_cache_loc[: rows.numel()] = out_cache_loc[rows].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Row tgt_loc[i] takes row src_loc[i] in each buffer, given by address and row stride in bytes."""
    if tgt_loc.numel() == 0:
        return
    target, source = tgt_loc.tolist(), src_loc.tolist()
    rows = max(*target, *source) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = np.ctypeslib.as_array(memory).reshape(rows, stride)
        buffer[target] = buffer[source].copy()
