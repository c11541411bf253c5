"""Self-test cases against SGLang's own kernels, where SGLang and a GPU are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .kernels import gdn_replay_commit as replay_op
from .kernels import gdn_tree_verify as verify_op
from .selftest_data import HybridShape, Outcome, Random, deepest_path, differing, relative
from .selftest_kernels import Case
from .selftest_state import REAL, split_heads
from .tables import TreeTables


def recurrent_kernel() -> Callable[..., torch.Tensor] | None:
    """SGLang's fused gated delta rule (0.5.16 and later keep it in one of these places)."""
    for package in (
        "sglang.kernels.ops.attention.fla",
        "sglang.kernels.ops.attention.linear",
        "sglang.srt.layers.attention.fla",
    ):
        try:
            module = __import__(f"{package}.fused_sigmoid_gating_recurrent", fromlist=["x"])
        except ImportError:
            continue
        return module.fused_sigmoid_gating_delta_rule_update  # type: ignore[no-any-return]
    return None


def cases() -> Iterator[Case]:
    if recurrent_kernel() is None:
        return
    yield Case("upstream", "tree verify, 32 nodes", lambda: _verify(32))
    yield Case("upstream", "chain verify, 16 rows", lambda: _verify(15, chain=True))
    yield Case("upstream", "committed state, bit for bit", _commit)


class Layer:
    """One Gated DeltaNet layer's inputs over a tree, and SGLang's kernel on them."""

    def __init__(self, shape: HybridShape, bs: int, tables: TreeTables, seed: int = 3) -> None:
        random = Random(seed, "cuda")
        width = tables.width
        self.shape, self.bs, self.tables = shape, bs, tables
        self.mixed = random.normal(bs, width, shape.channels, dtype=torch.bfloat16)
        self.q, self.k, self.v = split_heads(self.mixed, shape)
        self.a = random.normal(bs, width, shape.value_heads, dtype=torch.bfloat16) - 2
        self.b = random.normal(bs, width, shape.value_heads, dtype=torch.bfloat16)
        self.a_log = random.normal(shape.value_heads) * 0.5
        self.dt_bias = random.normal(shape.value_heads) * 0.1
        self.state = random.normal(bs + 2, shape.value_heads, shape.value_dim, shape.key_dim) * 0.3
        self.slots = torch.arange(1, bs + 1, dtype=torch.int32, device="cuda")

    def packed(self, rows: torch.Tensor | None = None, **kwargs: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """SGLang's kernel over all rows, or over chosen rows [bs, n] of each request, as a function of the state."""

        def pick(x: torch.Tensor) -> torch.Tensor:
            if rows is None:
                return x
            index = rows.view(*rows.shape, *([1] * (x.dim() - 2))).expand(*rows.shape, *x.shape[2:])
            return x.gather(1, index)

        q, k, v, a, b = (pick(x).flatten(0, 1).contiguous() for x in (self.q, self.k, self.v, self.a, self.b))
        n = q.shape[0] // self.bs
        starts = torch.arange(0, self.bs * n + 1, n, dtype=torch.int32, device="cuda")
        kernel = recurrent_kernel()
        assert kernel is not None
        return lambda state: kernel(
            A_log=self.a_log, a=a, dt_bias=self.dt_bias, softplus_beta=1.0, softplus_threshold=20.0,
            q=q[None], k=k[None], v=v[None], b=b, initial_state_source=state, initial_state_indices=self.slots,
            use_qk_l2norm_in_kernel=True, cu_seqlens=starts, **kwargs,
        )  # fmt: skip

    def ours(self, **kwargs: Any) -> torch.Tensor:
        return verify_op.gdn_tree_verify(
            self.q,
            self.k,
            self.v,
            self.a,
            self.b,
            self.a_log,
            self.dt_bias,
            self.state,
            self.slots,
            self.tables,
            **kwargs,
        )

    def snapshots(self) -> dict[str, Any]:
        """What SGLang's tree form needs: a state per node, and parents."""
        shape, width = self.shape, self.tables.width
        buffer = torch.empty(
            (self.bs, width, shape.value_heads, shape.value_dim, shape.key_dim), dtype=torch.float32, device="cuda"
        )
        return {
            "disable_state_update": True, "intermediate_states_buffer": buffer,
            "intermediate_state_indices": torch.arange(self.bs, dtype=torch.int32, device="cuda"), "cache_steps": width,
            "retrieve_parent_token": self.tables.par.clamp(min=0).contiguous(),
        }  # fmt: skip


def _verify(nodes: int, chain: bool = False) -> Outcome:
    random = Random(nodes, "cuda")
    tables = random.tree(2, nodes, 15, spine=nodes if chain else 0)
    layer = Layer(REAL, 2, tables)
    return Outcome(
        relative(layer.ours(), layer.packed(**layer.snapshots())(layer.state).view(2, tables.width, 48, 128)), 6e-3
    )


def _commit() -> Outcome:
    """A path committed by our replay equals SGLang's kernel run over the same rows as ordinary steps."""
    random = Random(5, "cuda")
    tables = random.tree(1, 63, 15, spine=0)
    path, lengths = deepest_path(tables)
    layer = Layer(REAL, 1, tables)
    want, got = layer.state.clone(), layer.state.clone()
    layer.packed(path[:, : int(lengths[0])])(want)
    replay_op.gdn_replay_commit(
        layer.k, layer.v, layer.a, layer.b, layer.a_log, layer.dt_bias, path, lengths, got, layer.slots
    )
    return Outcome(differing(got, want), 0.0)
