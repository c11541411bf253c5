"""The CUDA form of a hybrid's verify and commit, on two recurrent layers, against the reference ops layer by layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_ddtree import hybrid_gpu
from sglang_ddtree.kernels.reference.ancestor_bits import ancestor_bits
from sglang_ddtree.kernels.reference.conv_commit import conv_commit
from sglang_ddtree.kernels.reference.conv_tree import conv_tree
from sglang_ddtree.kernels.reference.gdn_replay_commit import gdn_replay_commit
from sglang_ddtree.kernels.reference.gdn_tree_verify import gdn_tree_verify
from sglang_ddtree.selftest_data import HybridShape, Random, deepest_path
from sglang_ddtree.selftest_state import split_heads
from sglang_ddtree.static_tree import StaticTree
from torch import nn

SHAPE = HybridShape(1, 2, 32, 32)
BS, WIDTH, SLOTS = 2, 17, 5


@pytest.fixture
def random() -> Random:
    return Random(11, "cpu")


def layers(random: Random) -> list[Any]:
    return [
        SimpleNamespace(
            layer_id=2 * i + 1, q_dim=32, k_dim=32, v_dim=64, num_q_heads=1, num_k_heads=1, num_v_heads=2, head_q_dim=32,
            head_k_dim=32, head_v_dim=32, conv_weights=random.normal(SHAPE.channels, 4) * 0.5,
            bias=random.normal(SHAPE.channels), activation="silu", A_log=random.normal(2), dt_bias=random.normal(2),
        )
        for i in range(2)
    ]  # fmt: skip


def backend(random: Random, chosen: list[Any]) -> Any:
    cache = SimpleNamespace(
        conv=[random.normal(2, SLOTS, SHAPE.channels, 3)], temporal=random.normal(2, SLOTS, 2, 32, 32)
    )
    index = {layer.layer_id: i for i, layer in enumerate(chosen)}

    def of_layer(layer_id: int) -> Any:
        i = index[layer_id]
        return SimpleNamespace(conv=[cache.conv[0][i]], temporal=cache.temporal[i])

    pool = SimpleNamespace(mamba2_layer_cache=of_layer, mamba_pool=SimpleNamespace(mamba_cache=cache))
    return SimpleNamespace(
        req_to_token_pool=pool, forward_extend=lambda **kwargs: "prefill",
        forward_metadata=SimpleNamespace(mamba_cache_indices=torch.tensor([3, 1, -1], dtype=torch.int32)),
    )  # fmt: skip


def test_verify_writes_no_state_and_commit_replays_the_path(random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = layers(random)
    monkeypatch.setattr(hybrid_gpu, "recurrent_layers", lambda model: chosen)
    tree = StaticTree(4, WIDTH, 15, "cpu")
    tables = random.tree(BS, WIDTH - 1, 15, spine=6)
    for name, value in vars(tables).items():
        getattr(tree.view(BS), name).copy_(value)
    tree.bits[:BS] = ancestor_bits(tables)
    states = hybrid_gpu.GraphStateFreeVerify(nn.Module(), tree, torch.float32, "cpu")
    fake = backend(random, chosen)
    states.attach(fake)
    cache = fake.req_to_token_pool.mamba_pool.mamba_cache
    want_conv, want_state = cache.conv[0].clone(), cache.temporal.clone()
    before = (want_conv.clone(), want_state.clone())
    slots = fake.forward_metadata.mamba_cache_indices[:BS]
    path, lengths = deepest_path(tables)
    track = (torch.tensor([0, 4]), torch.tensor([1, -1]))
    verify = SimpleNamespace(forward_mode=SimpleNamespace(is_target_verify=lambda: True))
    for i, layer in enumerate(chosen):
        # Parts of wider rows, as the projections leave them.
        x = random.normal(BS * WIDTH, SHAPE.channels + 64)[:, : SHAPE.channels]
        b, a = random.normal(BS * WIDTH, 4).split(2, -1)
        got = fake.forward_extend(layer=layer, forward_batch=verify, mixed_qkv=x, a=a, b=b)
        rows = x.view(BS, WIDTH, -1)
        y = conv_tree(rows, want_conv[i], layer.conv_weights, layer.bias, slots, tables)
        q, k, v = split_heads(y, SHAPE)
        gates = (a.view(BS, WIDTH, 2), b.view(BS, WIDTH, 2))
        want = gdn_tree_verify(q, k, v, *gates, layer.A_log, layer.dt_bias, want_state[i], slots, tables)
        assert torch.allclose(got.view(BS, WIDTH, 2, 32), want, atol=1e-4)
        gdn_replay_commit(k, v, *gates, layer.A_log, layer.dt_bias, path, lengths, want_state[i], slots, *track)
        conv_commit(rows, path, lengths, want_conv[i], slots, *track)
    assert torch.equal(cache.conv[0], before[0])
    assert torch.equal(cache.temporal, before[1])
    states.commit(path, lengths, *track)
    assert torch.equal(cache.conv[0], want_conv)
    assert torch.allclose(cache.temporal, want_state, atol=1e-5)
    assert not torch.equal(cache.temporal[:, 0], before[1][:, 0])  # the tracked copy


def test_other_forward_modes_stay_with_the_backend(random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = layers(random)
    monkeypatch.setattr(hybrid_gpu, "recurrent_layers", lambda model: chosen)
    states = hybrid_gpu.GraphStateFreeVerify(nn.Module(), StaticTree(1, WIDTH, 15, "cpu"), torch.float32, "cpu")
    fake = backend(random, chosen)
    states.attach(fake)
    prefill = SimpleNamespace(forward_mode=SimpleNamespace(is_target_verify=lambda: False))
    assert fake.forward_extend(layer=chosen[0], forward_batch=prefill, mixed_qkv=None, a=None, b=None) == "prefill"


def test_the_static_tree_clears_what_a_larger_batch_left() -> None:
    tree = StaticTree(4, WIDTH, 15, "cpu")
    tree.begin(torch.tensor([5, 6, 7]))
    tree.begin(torch.tensor([8]))
    assert tree.prefix.tolist() == [8, 0, 0, 0]
    first, second, third = (tree.next_output(2).path.data_ptr() for _ in range(3))
    assert first != second
    assert first == third
