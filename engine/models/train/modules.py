"""Target and draft as parameter tables with the names of their Hugging Face checkpoints."""

from __future__ import annotations

import math

import torch
from torch import nn

from . import gdn, layers
from .layers import Tensor
from .spec import BLOCK_SIZE, MASK_ID, MAX_POSITIONS, PairSpec, layer_kinds, rotary_dim

ATTENTION_WEIGHTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
MLP_WEIGHTS = ("gate_proj", "up_proj", "down_proj")


class ParameterTable(nn.Module):
    """Parameters registered under checkpoint names; ``layer(i)`` gives a layer's weights by short name."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        self.keys: dict[str, str] = {}
        self.short: list[dict[str, str]] = []

    def new(self, name: str, *shape: int, std: float = 0.02, fill: float | None = None) -> None:
        value = torch.randn(*shape, generator=self.generator) * std if fill is None else torch.full(shape, fill)
        self.put(name, value)

    def put(self, name: str, value: Tensor) -> None:
        self.keys[name] = name.replace(".", "__")
        self.register_parameter(self.keys[name], nn.Parameter(value.float()))

    def weight(self, name: str) -> Tensor:
        return getattr(self, self.keys[name])

    def layer(self, index: int) -> dict[str, Tensor]:
        return {short: self.weight(name) for short, name in self.short[index].items()}

    def index_layer(self, prefix: str) -> None:
        """Map short names ("q_proj", "A_log") to the checkpoint names that start with ``prefix``."""
        names = [n for n in self.keys if n.startswith(prefix)]
        self.short.append({n.removesuffix(".weight").rpartition(".")[2]: n for n in names})

    def new_mlp_and_norms(self, prefix: str, hidden: int, ffn: int, out_std: float, norm: float) -> None:
        self.new(prefix + "input_layernorm.weight", hidden, fill=norm)
        self.new(prefix + "post_attention_layernorm.weight", hidden, fill=norm)
        self.new(prefix + "mlp.gate_proj.weight", ffn, hidden)
        self.new(prefix + "mlp.up_proj.weight", ffn, hidden)
        self.new(prefix + "mlp.down_proj.weight", hidden, ffn, std=out_std)

    def new_attention(self, prefix: str, spec: PairSpec, out_std: float, norm: float, gated: bool) -> None:
        width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.new(prefix + "self_attn.q_proj.weight", width * (2 if gated else 1), spec.hidden)
        self.new(prefix + "self_attn.k_proj.weight", kv_width, spec.hidden)
        self.new(prefix + "self_attn.v_proj.weight", kv_width, spec.hidden)
        self.new(prefix + "self_attn.o_proj.weight", spec.hidden, width, std=out_std)
        self.new(prefix + "self_attn.q_norm.weight", spec.head_dim, fill=norm)
        self.new(prefix + "self_attn.k_norm.weight", spec.head_dim, fill=norm)

    def checkpoint(self) -> dict[str, Tensor]:
        """bfloat16 copies under checkpoint names, on the CPU."""
        return {n: self.weight(n).detach().to(torch.bfloat16).contiguous().cpu() for n in self.keys}

    @torch.no_grad()
    def round_to_checkpoint(self) -> None:
        """Make the parameters what the checkpoint holds, so that later stages see the shipped model."""
        for parameter in self.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())

    def add_rope(self, dim: int) -> None:
        cos, sin = layers.rope_tables(MAX_POSITIONS, dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)


class Target(ParameterTable):
    """Causal language model: Qwen3 layers, or Qwen3.5's Gated DeltaNet with gated attention every 4th layer."""

    def __init__(self, spec: PairSpec, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.spec, self.kinds = spec, layer_kinds(spec)
        norm, out_std = (0.0 if spec.hybrid else 1.0), 0.02 / math.sqrt(2 * spec.layers)
        self.new("model.embed_tokens.weight", spec.vocab, spec.hidden)
        for i, kind in enumerate(self.kinds):
            prefix = f"model.layers.{i}."
            self.new_mlp_and_norms(prefix, spec.hidden, spec.ffn, out_std, norm)
            if kind == "full_attention":
                self.new_attention(prefix, spec, out_std, norm, gated=spec.hybrid)
            else:
                self._new_gdn(prefix + "linear_attn.", out_std)
            self.index_layer(prefix)
        self.new("model.norm.weight", spec.hidden, fill=norm)
        self.add_rope(rotary_dim(spec))

    def _new_gdn(self, prefix: str, out_std: float) -> None:
        spec = self.spec
        key_width, value_width = spec.gdn_key_heads * spec.gdn_dim, spec.gdn_value_heads * spec.gdn_dim
        heads = spec.gdn_value_heads
        self.new(prefix + "in_proj_qkv.weight", 2 * key_width + value_width, spec.hidden)
        self.new(prefix + "in_proj_z.weight", value_width, spec.hidden)
        self.new(prefix + "in_proj_b.weight", heads, spec.hidden)
        self.new(prefix + "in_proj_a.weight", heads, spec.hidden)
        self.new(prefix + "conv1d.weight", 2 * key_width + value_width, 1, 4, std=0.3)
        self.put(prefix + "A_log", torch.empty(heads).uniform_(1, 16, generator=self.generator).log())
        step = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1), generator=self.generator).exp()
        self.put(prefix + "dt_bias", step + torch.log(-torch.expm1(-step)))
        self.new(prefix + "norm.weight", spec.gdn_dim, fill=1.0)
        self.new(prefix + "out_proj.weight", spec.hidden, value_width, std=out_std)

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return nn.functional.embedding(ids, self.weight("model.embed_tokens.weight")).to(dtype)

    def forward(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Ids [B, T] -> last hidden states [B, T, H] and the tapped layers' outputs [B, T, taps * H]."""
        x = self.embed(ids, dtype)
        rotary = (self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        tapped = []
        attend = layers.gated_attention_layer if self.spec.hybrid else layers.dense_layer
        for i, kind in enumerate(self.kinds):
            if kind == "full_attention":
                x = attend(x, rotary, self.layer(i), self.spec.head_dim)
            else:
                x = gdn.gdn_layer(x, self.layer(i), self.spec.gdn_key_heads, self.spec.gdn_dim)
            if i in self.spec.taps:
                tapped.append(x)
        hidden = layers.rms_norm(x, self.weight("model.norm.weight"), self.spec.hybrid)
        return hidden, torch.cat(tapped, -1)

    @property
    def head(self) -> Tensor:
        """The output matrix: the embedding, tied."""
        return self.weight("model.embed_tokens.weight")


class Draft(ParameterTable):
    """DFlash draft: a block [newest token, MASK, ...] sees the features of all earlier positions and itself."""

    def __init__(self, spec: PairSpec, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.spec, out_std = spec, 0.02 / math.sqrt(2 * spec.draft_layers)
        self.new("fc.weight", spec.hidden, len(spec.taps) * spec.hidden)
        self.new("hidden_norm.weight", spec.hidden, fill=1.0)
        self.new("norm.weight", spec.hidden, fill=1.0)
        for i in range(spec.draft_layers):
            self.new_mlp_and_norms(f"layers.{i}.", spec.hidden, spec.draft_ffn, out_std, 1.0)
            self.new_attention(f"layers.{i}.", spec, out_std, 1.0, gated=False)
            self.index_layer(f"layers.{i}.")
        self.add_rope(spec.head_dim)

    def forward(self, features: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """Features [B, S, taps * H], embedded blocks [B, A, 16, H] at positions ``anchors`` [B, A] -> [B, A, 16, H]."""
        batch, count, width, hidden = embedded.shape
        length, device = features.shape[1], embedded.device
        positions = (anchors[..., None] + torch.arange(width, device=device)).flatten(1)
        block = torch.arange(count * width, device=device) // width
        before = torch.arange(length, device=device) < anchors.repeat_interleave(width, 1)[..., None]
        same_block = (block[:, None] == block[None]).expand(batch, -1, -1)
        mask = torch.cat([before, same_block], -1)[:, None]
        context = layers.rms_norm(layers.linear(features, self.weight("fc.weight")), self.weight("hidden_norm.weight"))
        h = embedded.reshape(batch, count * width, hidden)
        if torch.is_grad_enabled() and not h.requires_grad:
            h.requires_grad_()  # so that the first layer compiles to the same graph as the others
        block_rotary = (self.cos[positions], self.sin[positions])
        context_rotary = (self.cos[:length], self.sin[:length])
        for i in range(self.spec.draft_layers):
            h = layers.draft_layer(h, context, mask, block_rotary, context_rotary, self.layer(i), self.spec.head_dim)
        return layers.rms_norm(h, self.weight("norm.weight")).view(batch, count, width, hidden)


def propose(target: Target, draft: Draft, features: Tensor, ids: Tensor, anchors: Tensor, dtype: torch.dtype) -> Tensor:
    """Hidden states [B, A, 15, H] of the proposals after each anchor token."""
    block = torch.full((*anchors.shape, BLOCK_SIZE), MASK_ID, device=ids.device)
    block[..., 0] = ids.gather(1, anchors)
    return draft(features.to(dtype), target.embed(block, dtype), anchors)[:, :, 1:]
