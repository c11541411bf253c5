"""A recurrent block whose inputs are read in place computes what SGLang's own block computes, from the same values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.models.qwen3_5 import Qwen3_5GatedDeltaNet
from sglang_ddtree.direct_inputs import DirectInputs, take_over
from torch import nn

HIDDEN, KEYS, VALUES, SIZE = 24, 2, 6, 8
WIDE, CHANNELS = 2 * KEYS * SIZE + 2 * VALUES * SIZE, 2 * KEYS * SIZE + VALUES * SIZE


class Layer(nn.Module):
    """Stands for the attention layer: its output names every input."""

    q_dim = k_dim = KEYS * SIZE
    v_dim, num_v_heads, head_v_dim = VALUES * SIZE, VALUES, SIZE

    def forward(self, forward_batch: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        self.seen = mixed_qkv
        v = mixed_qkv[:, 2 * KEYS * SIZE :].unflatten(-1, (VALUES, SIZE))
        return (v * a[..., None] + b[..., None] + mixed_qkv[:, :1, None])[None]


def block() -> Any:
    """SGLang's own block with its own forward, around small projections."""
    torch.manual_seed(0)
    made: Any = Qwen3_5GatedDeltaNet.__new__(Qwen3_5GatedDeltaNet)
    nn.Module.__init__(made)
    made.key_dim, made.value_dim, made.attn_tp_size = KEYS * SIZE, VALUES * SIZE, 1
    made.num_k_heads, made.num_v_heads, made.head_k_dim, made.head_v_dim = KEYS, VALUES, SIZE, SIZE
    wide, gates, out = torch.randn(HIDDEN, WIDE), torch.randn(HIDDEN, 2 * VALUES), torch.randn(VALUES * SIZE, HIDDEN)
    made._forward_input_proj = lambda x: (x @ wide, x @ gates)
    made.attn, made.norm = Layer(), lambda x, z: x * torch.sigmoid(z)
    made.out_proj = lambda x, **_: (x @ out, None)
    return made


def batch(verify: bool) -> Any:
    mode = SimpleNamespace(
        is_target_verify=lambda: verify, is_decode=lambda: False, is_extend_without_speculative=lambda: not verify
    )
    return SimpleNamespace(forward_mode=mode)


@pytest.mark.parametrize("verify", [True, False])
def test_the_block_gives_what_its_own_forward_gives(verify: bool) -> None:
    own, model = block(), nn.Sequential(block())
    x = torch.randn(5, HIDDEN)
    want = own.forward(x, batch(verify=False))  # the same in every pass; newer lines ask their context in verify passes
    assert take_over(model) == 1
    assert torch.equal(model[0].forward(x, batch(verify)), want)
    assert isinstance(model[0].forward, DirectInputs)
    in_place = model[0].attn.seen.stride(0) == WIDE
    assert in_place == verify  # other passes keep SGLang's own way
    assert model[0].attn.seen.shape[1] == CHANNELS


def test_a_block_with_another_layout_keeps_its_own_forward() -> None:
    made = block()
    split = made.fix_query_key_value_ordering
    made.fix_query_key_value_ordering = lambda wide, gates: split(wide.flip(-1), gates)
    assert take_over(nn.Sequential(made)) == 0
    assert not isinstance(made.forward, DirectInputs)
