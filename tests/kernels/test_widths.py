"""Several widths over one set of static buffers: what each builds equals the reference, and the graphs follow the width."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_ddtree.config import DDTreeConfig
from sglang_ddtree.draft_tree import TreeSampler
from sglang_ddtree.hybrid_gpu import Records
from sglang_ddtree.kernels.reference.topk_lse import topk_lse
from sglang_ddtree.kernels.reference.tree_build import tree_build
from sglang_ddtree.static_tree import StaticTree
from sglang_ddtree.width_graphs import WidthGraphs
from sglang_ddtree.widths import Width

BLOCK, VOCABULARY, HIDDEN, BS = 6, 50, 8, 2


@pytest.fixture
def config() -> DDTreeConfig:
    return DDTreeConfig.read(BLOCK, 21, {"SGLANG_DDTREE_WIDTHS": "chain,5,20", "SGLANG_DDTREE_TOPK": "8"})


def test_each_width_builds_its_own_trees(config: DDTreeConfig) -> None:
    tree = StaticTree(4, [width.rows for width in config.widths], config.max_depth, "cpu")
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    sampler = TreeSampler(SimpleNamespace(weight=weight), config, tree, SimpleNamespace(world_size=1))
    for index in (2, 0, 1, 2):
        width = config.widths[index]
        tree.use(index)
        sampler.width = width
        hidden = torch.randn(BS * BLOCK, HIDDEN, generator=generator)
        sampler(hidden)
        logits = hidden.view(BS, BLOCK, -1)[:, 1:].reshape(-1, HIDDEN) @ weight.T
        logp, ids = topk_lse(logits, 8)
        shape = (BS, config.max_depth, 8)
        want = tree_build(logp.view(shape), ids.view(shape), width.nodes, width.spine)
        found = tree.view(BS)
        assert found.tok.shape == (BS, width.rows)
        assert torch.equal(found.tok[:, 1:], want.tok[:, 1:])
        assert torch.equal(found.par, want.par)
        if width.is_chain:
            assert found.par[0].tolist() == [-1, 0, 1, 2, 3, 4]


def test_widths_share_what_does_not_depend_on_them() -> None:
    tree = StaticTree(4, [6, 6, 21], 5, "cpu")
    assert tree.width == 21
    first = tree.next_output(1).path.data_ptr()
    tree.begin(torch.tensor([7, 8]))
    tree.counters[0] += 5
    tree.use(0)
    chain = tree.view(2)
    assert (tree.width, tree.prefix[:2].tolist(), tree.positions.shape) == (6, [7, 8], (4, 6))
    assert tree.next_output(1).path.data_ptr() != first  # the turn goes on across widths
    tree.counters[0] += 1
    tree.use(1)
    assert tree.view(2) is chain
    tree.counters[0] += 2
    assert tree.all_counters[:, 0].tolist() == [1, 2, 5]


def test_narrow_records_lie_in_the_memory_of_the_widest() -> None:
    layers = [SimpleNamespace(q_dim=4, k_dim=4, v_dim=8, num_v_heads=2)] * 3
    widest = Records.empty(layers, 2, 21, torch.float32, "cpu")
    narrow = widest.at(6)
    assert narrow.x.shape == (3, 2, 6, 16)
    assert narrow.x.is_contiguous()
    assert narrow.x.data_ptr() == widest.x.data_ptr()
    narrow.a.fill_(1.0)
    assert float(widest.a.sum()) == narrow.a.numel()


def test_graphs_of_the_width_in_force_are_replayed() -> None:
    widths = [Width("chain", 5, 5), Width("5", 5, 0), Width("20", 20, 0)]
    captured: list[tuple[str, int | None, str]] = []
    in_force: list[Width] = []

    def capture(runner: Any, rows: int | None) -> str:
        captured.append((runner.name, rows, in_force[-1].label))
        return f"{runner.name} {rows} {in_force[-1].label}"

    target = SimpleNamespace(name="target", decode_cuda_graph_runner="target's own")
    draft = SimpleNamespace(name="draft", decode_cuda_graph_runner="draft's own")
    graphs = WidthGraphs(target, draft, SimpleNamespace(capture_graphs=capture), widths)  # type: ignore[arg-type]
    graphs.capture(widths, in_force.append)
    # Chain and five nodes have equally many rows: one target runner serves both, and each has its own tree in the draft's.
    assert captured == [("target", 6, "chain"), ("draft", None, "chain"), ("draft", None, "5")]
    graphs.use(widths[2])
    assert (target.decode_cuda_graph_runner, draft.decode_cuda_graph_runner) == ("target's own", "draft's own")
    graphs.use(widths[1])
    assert target.decode_cuda_graph_runner == "target 6 chain"
    assert draft.decode_cuda_graph_runner == "draft None 5"


def test_eager_runners_stay_eager() -> None:
    widths = [Width("chain", 5, 5), Width("20", 20, 0)]
    target, draft = (SimpleNamespace(decode_cuda_graph_runner=None) for _ in range(2))
    graphs = WidthGraphs(target, draft, SimpleNamespace(), widths)  # type: ignore[arg-type]
    graphs.capture(widths, lambda width: None)
    graphs.use(widths[0])
    assert target.decode_cuda_graph_runner is None
