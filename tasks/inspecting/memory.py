"""What a verify width costs in memory on one GPU, and which node budgets fit.

B is the number of non-root nodes, T = B + 1 the verify width. All figures are bytes per GPU; heads and channels
are divided by tp. The formulas are checked against published figures of a 27B hybrid in tests/inspect/test_models.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tasks.inspecting.model_config import BYTES, LinearAttention, ModelFacts

BUDGETS = (15, 16, 22, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024)
RECORD_BYTES = 2  # activations are recorded in the model's 16-bit type
TAPS = 5  # layers whose hidden states a DFlash draft reads
GRAPH_BYTES = 1 << 30  # captured graphs and work space of the engine, target and draft
ACTIVATION_ROWS = 8192  # rows of the largest prefill chunk


@dataclass(frozen=True)
class Setting:
    """How the service runs; what the maths depends on besides the models."""

    gpu_bytes: int
    tp: int = 1
    running_requests: int = 1
    context: int = 32768
    block: int = 16
    fraction_static: float = 0.85
    kv_dtype: str = "bfloat16"
    mask_backend: str = "triton"
    lean_records: bool = False
    max_tokens: int | None = None  # the service's own limit of its KV cache


@dataclass(frozen=True)
class NodeCost:
    """Bytes that one verify row of one request needs."""

    upstream_snapshot: int
    record: int
    kv: int
    logits: int
    hidden: int
    scratch: int


@dataclass(frozen=True)
class Budget:
    """One node budget: its parts in bytes per GPU, whether it fits, and what is left for the KV cache."""

    nodes: int
    width: int
    fits: bool
    bytes: int
    records: int
    kv_slots: int
    logits: int
    hidden: int
    scratch: int
    masks: int
    upstream_snapshots: int
    upstream_fits: bool
    kv_tokens: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def snapshot_bytes(linear: LinearAttention | None, tp: int = 1) -> int:
    """Recurrent and convolution state that upstream keeps per verify row (and per running request)."""
    if linear is None:
        return 0
    return linear.layers * (linear.state_bytes_per_layer + linear.conv_bytes_per_layer) // tp


def record_bytes(linear: LinearAttention | None, tp: int = 1, lean: bool = False) -> int:
    """Inputs that a state-free verify keeps per row until the accepted path is replayed.

    Fat: pre-convolution activations, post-convolution keys and values, the two gates in float32. Lean: without keys and
    values, which the commit recomputes for the accepted path.
    """
    if linear is None:
        return 0
    gates = 2 * linear.value_heads * 4
    keys_values = linear.key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    per_layer = linear.conv_channels * RECORD_BYTES + gates + (0 if lean else keys_values * RECORD_BYTES)
    return linear.layers * per_layer // tp


def node_cost(target: ModelFacts, setting: Setting) -> NodeCost:
    linear = target.linear
    scratch = 2 * linear.value_heads * linear.value_dim * 4 // setting.tp if linear else 0
    return NodeCost(
        upstream_snapshot=snapshot_bytes(linear, setting.tp),
        record=record_bytes(linear, setting.tp, setting.lean_records),
        kv=target.full.kv_bytes_per_token(BYTES.get(setting.kv_dtype, 2), setting.tp),
        logits=target.vocab * 4,
        hidden=TAPS * target.hidden * 2,
        scratch=scratch,
    )


def mask_bytes(width: int, context: int, rows: int, backend: str) -> int:
    """The verify mask of `rows` requests: a byte per row and key (full mask), or per row pair for token tables."""
    if backend == "fa3":
        return rows * 4 * width * width
    if backend == "intel_amx":
        return rows * width * width
    return rows * width * (context + width)


def draft_kv_bytes(draft: ModelFacts | None, tp: int, dtype: str) -> int:
    return draft.full.kv_bytes_per_token(BYTES.get(dtype, 2), tp) if draft else 0


def token_bytes(target: ModelFacts, draft: ModelFacts | None, setting: Setting) -> int:
    """KV cache of one token, of target and draft."""
    own = target.full.kv_bytes_per_token(BYTES.get(setting.kv_dtype, 2), setting.tp)
    return own + draft_kv_bytes(draft, setting.tp, setting.kv_dtype)


def static_bytes(target: ModelFacts, draft: ModelFacts | None, setting: Setting) -> dict[str, int]:
    """What is needed whatever the budget: weights, live states, graphs, prefill activations."""
    rows = setting.running_requests + 1
    activations = ACTIVATION_ROWS * (target.hidden * 8 + 2 * target.intermediate // setting.tp) * 2
    return {
        "weights": target.weights // setting.tp,
        "draft_weights": (draft.weights // setting.tp) if draft else 0,
        "states": rows * snapshot_bytes(target.linear, setting.tp),
        "graphs": min(GRAPH_BYTES, max(32 << 20, target.weights // 20)),
        "activations": min(activations, max(64 << 20, target.weights // 5)),
    }


def budget(target: ModelFacts, draft: ModelFacts | None, setting: Setting, nodes: int) -> Budget:
    """Memory of one budget B (width T = B + 1) for all running requests; fits when one context still fits in the KV cache."""
    width, rows = nodes + 1, setting.running_requests
    cost = node_cost(target, setting)
    parts = {
        "records": (rows + 1) * width * cost.record,
        "kv_slots": rows * 2 * width * cost.kv,
        "logits": rows * width * cost.logits,
        "hidden": rows * width * cost.hidden,
        "scratch": rows * width * cost.scratch,
        "masks": mask_bytes(width, setting.context, rows, setting.mask_backend),
    }
    upstream = (rows + 1) * width * cost.upstream_snapshot
    fixed = sum(static_bytes(target, draft, setting).values())
    room = round(setting.gpu_bytes * setting.fraction_static) - fixed
    per_token = token_bytes(target, draft, setting)
    tree = sum(parts.values())
    left = room - tree
    needed = setting.context * per_token
    upstream_left = left + parts["records"] + parts["scratch"] - upstream
    fits = left >= needed
    kv_tokens = max(0, left // per_token) if per_token else 0
    kv_tokens = min(kv_tokens, setting.max_tokens or kv_tokens)
    reason = (
        f"{kv_tokens} KV tokens remain"
        if fits
        else f"{_gib(needed - left)} GiB short of one {setting.context}-token context for the KV cache"
    )
    return Budget(
        nodes,
        width,
        fits,
        tree,
        **parts,
        upstream_snapshots=upstream,
        upstream_fits=upstream_left >= needed,
        kv_tokens=kv_tokens,
        reason=reason,
    )


def budgets(
    target: ModelFacts, draft: ModelFacts | None, setting: Setting, nodes: Sequence[int] = BUDGETS
) -> list[Budget]:
    return [budget(target, draft, setting, count) for count in nodes]


def _gib(value: int) -> str:
    return f"{value / (1 << 30):.1f}"
