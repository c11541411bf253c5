"""Recurrent-layer ops over trees against a chain per node, in float64 and bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sglang_ddtree.kernels.reference.conv_commit import conv_commit
from sglang_ddtree.kernels.reference.conv_tree import conv_tree
from sglang_ddtree.kernels.reference.gdn import gates, unit
from sglang_ddtree.kernels.reference.gdn_replay_commit import gdn_replay_commit
from sglang_ddtree.kernels.reference.gdn_tree_verify import gdn_tree_verify
from sglang_ddtree.kernels.reference.tree_build import tree_build
from sglang_ddtree.tables import TreeTables
from trees import delta_rule, marginals, rows_above

H, HV, K, V = 2, 4, 16, 8
CHANNELS, TAPS = 6, 4


def trees(seed: int, levels: int, candidates: int, budget: int, sharpness: float) -> TreeTables:
    logp = torch.stack([torch.from_numpy(marginals(seed + i, levels, candidates, sharpness, False)) for i in range(2)])
    return tree_build(logp, torch.zeros(logp.shape, dtype=torch.int64), budget)


CASES = [
    (15, 8, 15, 1.0),
    (15, 8, 64, 3.0),
    (7, 4, 40, 0.3),
    (1, 8, 8, 1.0),
    (15, 1, 20, 1.0),
    (15, 16, 200, 2.0),
]


def inputs(bs: int, width: int) -> dict[str, torch.Tensor]:
    return {
        "q": torch.randn(bs, width, H, K),
        "k": torch.randn(bs, width, H, K) + 1.0,  # correlated keys are the hard case of the solve
        "v": torch.randn(bs, width, HV, V),
        "a": torch.randn(bs, width, HV),
        "b": torch.randn(bs, width, HV),
        "a_log": torch.randn(HV),
        "dt_bias": torch.randn(HV),
    }


def chain(
    x: dict[str, torch.Tensor], b: int, rows: list[int], state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 recurrence over the given rows from ``state``."""
    g, beta = gates(x["a"][b, rows], x["b"][b, rows], x["a_log"], x["dt_bias"])
    group = HV // H
    q = (unit(x["q"][b, rows]) * K**-0.5).repeat_interleave(group, 1)
    k = unit(x["k"][b, rows]).repeat_interleave(group, 1)
    return delta_rule(state.double(), q.double(), k.double(), x["v"][b, rows].double(), g.double(), beta.double())


@pytest.mark.parametrize("case", CASES)
def test_tree_verify_equals_a_chain_per_node(case):
    torch.manual_seed(1)
    tables = trees(7, *case)
    x, state = inputs(2, tables.width), torch.randn(5, HV, V, K) * 0.3
    slots, before = torch.tensor([3, 1]), state.clone()
    out = gdn_tree_verify(**x, state=state, slots=slots, tables=tables)
    assert torch.equal(state, before)
    for b in range(2):
        for row in range(int(tables.count[b])):
            expected, _ = chain(x, b, rows_above(tables, b, row), state[slots[b]])
            torch.testing.assert_close(out[b, row].double(), expected[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_replay_is_the_chain_bit_for_bit(case):
    torch.manual_seed(2)
    tables = trees(8, *case)
    x, state = inputs(2, tables.width), torch.randn(6, HV, V, K) * 0.3
    slots, before = torch.tensor([4, 2]), state.clone()
    block = case[0] + 1
    path, commit_lens = torch.zeros(2, block, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    for b in range(2):
        rows = rows_above(tables, b, int(tables.dep[b, : int(tables.count[b])].argmax()))
        path[b, : len(rows)] = torch.tensor(rows)
        commit_lens[b] = len(rows)
    keep = {name: x[name] for name in ("k", "v", "a", "b", "a_log", "dt_bias")}
    track = commit_lens - 2  # -1, no tracking, where only the root is committed
    gdn_replay_commit(
        **keep, path=path, commit_lens=commit_lens, state=state, slots=slots, track_slots=torch.tensor([0, 5]),
        track_steps=track,
    )  # fmt: skip
    for b in range(2):
        n, rows = int(commit_lens[b]), path[b, : int(commit_lens[b])].tolist()
        # the same rows as a chain, one commit per token, as ordinary decoding would do it
        single = before.clone()
        for step, row in enumerate(rows):
            at = {name: (x[name][b : b + 1, [row]] if x[name].dim() > 1 else x[name]) for name in keep}
            gdn_replay_commit(
                **at, path=torch.zeros(1, 1, dtype=torch.int64), commit_lens=torch.ones(1), state=single,
                slots=slots[b : b + 1],
            )  # fmt: skip
            if step == n - 2:
                assert torch.equal(state[[0, 5][b]], single[slots[b]])
        assert torch.equal(state[slots[b]], single[slots[b]])
        _, expected = chain(x, b, rows, before[slots[b]])
        torch.testing.assert_close(state[slots[b]].double(), expected, rtol=1e-4, atol=1e-5)
    untouched = [
        i for i in range(6) if i not in (4, 2, *([0] if track[0] >= 0 else []), *([5] if track[1] >= 0 else []))
    ]
    assert torch.equal(state[untouched], before[untouched])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_tree_convolution_equals_a_chain_per_node(case, bias):
    torch.manual_seed(3)
    tables = trees(9, *case)
    x, conv_state = torch.randn(2, tables.width, CHANNELS), torch.randn(4, CHANNELS, TAPS - 1)
    weight, offset = torch.randn(CHANNELS, TAPS), torch.randn(CHANNELS) if bias else None
    slots, before = torch.tensor([2, 0]), conv_state.clone()
    y = conv_tree(x, conv_state, weight, offset, slots, tables)
    assert torch.equal(conv_state, before)
    for b in range(2):
        for row in range(int(tables.count[b])):
            rows = rows_above(tables, b, row)
            history = torch.cat([conv_state[slots[b]], x[b, rows].T], 1)[None]
            expected = F.silu(F.conv1d(history, weight[:, None], offset, groups=CHANNELS))[0, :, -1]
            torch.testing.assert_close(y[b, row], expected, rtol=1e-5, atol=1e-6)


def test_convolution_commit_shifts_the_path_and_tracks():
    torch.manual_seed(4)
    x, conv_state = torch.randn(3, 9, CHANNELS), torch.randn(6, CHANNELS, TAPS - 1)
    before = conv_state.clone()
    path = torch.tensor([[0, 2, 5, 8, 8], [0, 1, 1, 1, 1], [0, 3, 4, 4, 4]])
    conv_commit(
        x, path, torch.tensor([4, 1, 3]), conv_state, torch.tensor([1, 3, -1]),
        track_slots=torch.tensor([0, 2, 4]), track_steps=torch.tensor([1, -1, 0]),
    )  # fmt: skip
    assert torch.equal(conv_state[1], x[0, [2, 5, 8]].T)
    assert torch.equal(conv_state[0], torch.stack([before[1][:, 2], x[0, 0], x[0, 2]], 1))
    assert torch.equal(conv_state[3], torch.cat([before[3][:, 1:], x[1, :1].T], 1))
    assert torch.equal(conv_state[[2, 4, 5]], before[[2, 4, 5]])  # untracked, padding, unrelated


def test_negative_slot_gives_zero_and_writes_nothing():
    tables = trees(3, 5, 4, 12, 1.0)
    x, state = inputs(2, tables.width), torch.randn(3, HV, V, K)
    out = gdn_tree_verify(**x, state=state, slots=torch.tensor([1, -1]), tables=tables)
    assert (out[1] == 0).all()
    assert out[0].abs().max() > 0
