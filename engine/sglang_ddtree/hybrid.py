"""Hybrid targets (Gated DeltaNet): verify a tree without a state per node, commit by replaying the path.

During verify each recurrent layer records what its rows put in; nothing is written to the live states.  After
the walk the accepted rows are replayed in order, which gives the bits a chain would have given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import ops
from .tables import TreeTables


@dataclass
class LayerRecord:
    """Inputs of one recurrent layer for every verify row of a batch."""

    layer: Any
    x: torch.Tensor  # [bs, T, C] before the convolution
    k: torch.Tensor  # [bs, T, H, K] after it
    v: torch.Tensor  # [bs, T, HV, V] after it
    a: torch.Tensor  # [bs, T, HV]
    b: torch.Tensor  # [bs, T, HV]


class StateFreeVerify:
    """Takes over the verify pass of the target's linear-attention backend, and the commit of its states."""

    def __init__(self, target_backend: Any) -> None:
        self.backend = target_backend.linear_attn_backend
        # SGLang's metadata stays chain-shaped: the tree reaches the layers through the verify input.
        self.backend.topk = 1
        self.records: list[LayerRecord] = []
        self._prefill = self.backend.forward_extend
        self.backend.forward_extend = self.forward_extend

    def forward_extend(
        self,
        layer: Any,
        forward_batch: Any,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        """mixed_qkv [bs * T, C], a and b [bs * T, HV] -> [1, bs * T, HV, V], as the backend's own method."""
        if not forward_batch.forward_mode.is_target_verify():
            return self._prefill(layer=layer, forward_batch=forward_batch, mixed_qkv=mixed_qkv, a=a, b=b, **kwargs)
        tables: TreeTables = forward_batch.spec_info.tables
        bs, width = tables.tok.shape
        states = self.backend.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
        slots = self.slots(bs)
        x = mixed_qkv.view(bs, width, -1)
        y = ops.conv_tree(x, states.conv[0], layer.conv_weights, layer.bias, slots, tables, activation=layer.activation)
        q, k, v = torch.split(y, [layer.q_dim, layer.k_dim, layer.v_dim], dim=-1)
        q = q.reshape(bs, width, layer.num_q_heads, layer.head_q_dim)
        k = k.reshape(bs, width, layer.num_k_heads, layer.head_k_dim)
        v = v.reshape(bs, width, layer.num_v_heads, layer.head_v_dim)
        a, b = a.view(bs, width, -1), b.view(bs, width, -1)
        self.records.append(LayerRecord(layer, x.clone(), k, v, a.clone(), b.clone()))
        out = ops.gdn_tree_verify(q, k, v, a, b, layer.A_log, layer.dt_bias, states.temporal, slots, tables)
        return out.reshape(1, bs * width, *out.shape[2:])

    def slots(self, bs: int) -> torch.Tensor:
        """State slots of the batch that was verified last, [bs]."""
        return self.backend.forward_metadata.mamba_cache_indices[:bs]

    def commit(
        self,
        path: torch.Tensor,
        commit_lens: torch.Tensor,
        track_slots: torch.Tensor | None = None,
        track_steps: torch.Tensor | None = None,
    ) -> None:
        """Replay path[b, :commit_lens[b]] in every recurrent layer; see ``gdn_replay_commit`` for tracking."""
        slots = self.slots(path.shape[0])
        for record in self.records:
            layer = record.layer
            states = self.backend.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
            ops.gdn_replay_commit(
                record.k, record.v, record.a, record.b, layer.A_log, layer.dt_bias,
                path, commit_lens, states.temporal, slots, track_slots, track_steps,
            )  # fmt: skip
            ops.conv_commit(record.x, path, commit_lens, states.conv[0], slots, track_slots, track_steps)
        self.records.clear()


def tracked_steps(pre: torch.Tensor, post: torch.Tensor, grid: int) -> torch.Tensor:
    """pre, post [bs] lengths before and after a step -> the step (0-based) whose state the radix cache wants.

    That is the step which reaches the last multiple of ``grid`` in (pre, post]; -1 where there is none.
    """
    last_multiple = post // grid * grid
    return torch.where(last_multiple > pre, last_multiple - pre - 1, -1)
