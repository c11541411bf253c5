"""Hybrid targets on a GPU: the state-free verify inside the target's CUDA graph, and one commit for all layers.

Per verify row and layer only the raw convolution inputs and the gate inputs are kept; the commit repeats the
convolution for the accepted rows and replays the recurrence in order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .direct_inputs import take_over
from .kernels.conv_commit import conv_commit
from .kernels.conv_tree import conv_tree
from .kernels.gdn_replay_commit import RawRecord, gdn_replay_commit
from .kernels.gdn_tree_verify import VerifyScratch, gdn_tree_verify
from .static_tree import StaticTree

logger = logging.getLogger(__name__)


def recurrent_layers(model: nn.Module) -> list[Any]:
    """The linear-attention layers of a target, in layer order; ValueError when one is not Gated DeltaNet."""
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

    layers: list[Any] = sorted(
        (m for m in model.modules() if isinstance(m, RadixLinearAttention)), key=lambda m: m.layer_id
    )
    for layer in layers:
        if layer.A_log is None or layer.A_log.numel() != layer.num_v_heads:
            raise ValueError(
                "DDTREE supports hybrids with Gated DeltaNet only, and this target has another linear attention "
                f"in layer {layer.layer_id}."
            )
        if layer.conv_weights.shape[1] != 4:
            raise ValueError(
                f"DDTREE knows convolutions of width 4, layer {layer.layer_id} has {layer.conv_weights.shape[1]}."
            )
    return layers


@dataclass
class Records:
    """Inputs of every recurrent layer for every verify row: x [layers, max_bs, T, C], a and b [.., HV]."""

    x: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor

    @classmethod
    def empty(cls, layers: list[Any], max_bs: int, width: int, dtype: torch.dtype, device: Any) -> Records:
        first = layers[0]
        channels = first.q_dim + first.k_dim + first.v_dim

        def rows(n: int) -> torch.Tensor:
            return torch.zeros((len(layers), max_bs, width, n), dtype=dtype, device=device)

        return cls(rows(channels), rows(first.num_v_heads), rows(first.num_v_heads))

    def at(self, width: int) -> Records:
        """The same memory as records of ``width`` rows per request, which must be no more than it was made for."""
        layers, bs = self.x.shape[:2]

        def rows(x: torch.Tensor) -> torch.Tensor:
            n = x.shape[-1]
            return x.view(-1)[: layers * bs * width * n].view(layers, bs, width, n)

        return Records(rows(self.x), rows(self.a), rows(self.b))

    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.x, self.a, self.b))


class GraphStateFreeVerify:
    """Takes over verify passes of the target's linear-attention backend; built before the KV pool is sized."""

    def __init__(self, model: nn.Module, tree: StaticTree, dtype: torch.dtype, device: Any) -> None:
        self.layers = recurrent_layers(model)
        self.index = {layer.layer_id: i for i, layer in enumerate(self.layers)}
        first = self.layers[0]
        self.tree = tree
        # For the widest tree; narrower ones use the front of the same memory.
        self.records = Records.empty(self.layers, tree.max_bs, tree.max_width, dtype, device)
        self._records = {width: self.records.at(width) for width in set(tree.widths)}
        self.y = torch.empty((tree.max_bs * tree.max_width, self.records.x.shape[-1]), dtype=dtype, device=device)
        self.out = torch.empty(
            (tree.max_bs * tree.max_width, first.num_v_heads, first.head_v_dim), dtype=dtype, device=device
        )
        self.scratch = VerifyScratch.empty(tree.max_bs, tree.max_width, first.num_k_heads, device)
        self.weight = torch.stack([layer.conv_weights.detach() for layer in self.layers]).contiguous()
        biases = [layer.bias for layer in self.layers]
        self.bias = None if biases[0] is None else torch.stack([bias.detach() for bias in biases]).contiguous()
        self.a_log = torch.stack([layer.A_log.detach().float() for layer in self.layers]).contiguous()
        self.dt_bias = torch.stack([layer.dt_bias.detach().float() for layer in self.layers]).contiguous()
        self.backend: Any = None
        direct = take_over(model)
        logger.info("DDTREE: %d of %d recurrent blocks are read in place", direct, len(self.layers))

    def attach(self, backend: Any) -> None:
        """Replace the verify branch of the backend's ``forward_extend``."""
        self.backend = backend
        self._prefill = backend.forward_extend
        backend.forward_extend = self.forward_extend

    def forward_extend(
        self, layer: Any, forward_batch: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """mixed_qkv [bs*T, C], a and b [bs*T, HV] -> [1, bs*T, HV, V], as the backend's own method."""
        if not forward_batch.forward_mode.is_target_verify():
            return self._prefill(layer=layer, forward_batch=forward_batch, mixed_qkv=mixed_qkv, a=a, b=b, **kwargs)
        i, width = self.index[layer.layer_id], self.tree.width
        bs = mixed_qkv.shape[0] // width
        tables, bits, slots = self.tree.view(bs), self.tree.bits[:bs], self.slots(bs)
        states = self.backend.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
        a, b = a.view(bs, width, -1), b.view(bs, width, -1)
        kept = self._records[width]
        y = conv_tree(
            mixed_qkv.view(bs, width, -1), states.conv[0], self.weight[i], None if self.bias is None else self.bias[i],
            slots, tables, layer.activation, out=self.y[: bs * width].view(bs, width, -1),
            record=(kept.x[i, :bs], kept.a[i, :bs], kept.b[i, :bs]), gate_inputs=(a, b),
        )  # fmt: skip
        q, k, v = torch.split(y, [layer.q_dim, layer.k_dim, layer.v_dim], dim=-1)
        out = gdn_tree_verify(
            q.unflatten(-1, (layer.num_q_heads, layer.head_q_dim)), k.unflatten(-1, (layer.num_k_heads, layer.head_k_dim)),
            v.unflatten(-1, (layer.num_v_heads, layer.head_v_dim)), a, b, self.a_log[i], self.dt_bias[i],
            states.temporal, slots, tables, bits=bits, out=self.out[: bs * width].unflatten(0, (bs, width)), scratch=self.scratch,
        )  # fmt: skip
        return out.view(1, bs * width, layer.num_v_heads, layer.head_v_dim)

    def slots(self, bs: int) -> torch.Tensor:
        """State slots of the batch that was verified last, [bs]; -1 for the padding of a graph."""
        return self.backend.forward_metadata.mamba_cache_indices[:bs]

    def commit(
        self,
        path: torch.Tensor,
        commit_lens: torch.Tensor,
        track_slots: torch.Tensor | None = None,
        track_steps: torch.Tensor | None = None,
    ) -> None:
        """Replay path[b, :commit_lens[b]] in every recurrent layer, and note the tracked step's states."""
        bs = path.shape[0]
        cache = self.backend.req_to_token_pool.mamba_pool.mamba_cache
        first, kept, slots = self.layers[0], self._records[self.tree.width], self.slots(bs)
        raw = RawRecord(cache.conv[0], self.weight, self.bias, first.num_k_heads, first.activation)
        gdn_replay_commit(
            kept.x[:, :bs], None, kept.a[:, :bs], kept.b[:, :bs], self.a_log, self.dt_bias, path, commit_lens,
            cache.temporal, slots, track_slots, track_steps, raw=raw,
        )  # fmt: skip
        conv_commit(kept.x[:, :bs], path, commit_lens, cache.conv[0], slots, track_slots, track_steps)
