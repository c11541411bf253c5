"""How long a step should take on a GPU, and how much acceptance a budget must gain to pay for its width.

A step reads all active weights once and multiplies them with every verify row: t = max(weights / bandwidth,
2 * parameters * rows / FLOP rate) + the recurrent layers. A prediction, marked as such everywhere; the benchmark decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tasks.inspecting.memory import Setting
from tasks.inspecting.model_config import ModelFacts, bytes_per_parameter

# Shares of the data sheet's figures that a 27B step reached on an H200 (14.6 ms autoregressive, 19.8 ms linear DFLASH).
BANDWIDTH_SHARE = 0.74
FLOP_SHARE = 0.56
STEP_OVERHEAD_S = 0.0015  # launches, norms, copies, sampling of one step outside the GEMMs
DRAFT_OVERHEAD_S = 0.0010


@dataclass(frozen=True)
class Device:
    """Data-sheet figures of a GPU: bytes/s of memory and dense 16-bit FLOP/s (8-bit is twice that where `fp8`)."""

    pattern: str
    bandwidth: float
    flops: float
    fp8: bool


DEVICES = (
    Device(r"B200|GB200", 8.0e12, 2.25e15, True),
    Device(r"B300|GB300", 8.0e12, 2.25e15, True),
    Device(r"H200", 4.8e12, 0.99e15, True),
    Device(r"H100.*NVL", 3.9e12, 0.84e15, True),
    Device(r"H100.*PCIe", 2.0e12, 0.76e15, True),
    Device(r"H100|GH200", 3.35e12, 0.99e15, True),
    Device(r"A100.*80|A100-SXM", 2.0e12, 0.312e15, False),
    Device(r"A100", 1.55e12, 0.312e15, False),
    Device(r"RTX PRO 6000", 1.79e12, 0.50e15, True),
    Device(r"RTX PRO 5000", 1.34e12, 0.30e15, True),
    Device(r"RTX 5090", 1.79e12, 0.21e15, True),
    Device(r"L40S", 0.86e12, 0.36e15, True),
    Device(r"RTX 6000 Ada", 0.96e12, 0.36e15, True),
    Device(r"RTX 4090", 1.01e12, 0.165e15, True),
    Device(r"A6000", 0.77e12, 0.155e15, False),
    Device(r"RTX 3090", 0.94e12, 0.071e15, False),
    Device(r"\bA40\b", 0.70e12, 0.15e15, False),
    Device(r"GB10|Thor", 0.273e12, 0.12e15, True),
)


@dataclass(frozen=True)
class Prediction:
    """One budget: predicted step seconds, the ratio to linear's step, and the tokens per step it needs to break even."""

    nodes: int
    width: int
    step_s: float
    ratio_to_linear: float
    break_even_gain: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def device_of(name: str) -> Device | None:
    return next((d for d in DEVICES if re.search(d.pattern, name, re.I)), None)


def touched_share(model: ModelFacts, rows: int) -> float:
    """Share of a mixture's expert weights that `rows` tokens touch, taking routing as uniform."""
    if not model.experts:
        return 1.0
    return float(1.0 - (1.0 - min(1.0, model.experts_per_token / model.experts)) ** rows)


def forward_s(model: ModelFacts, device: Device, rows: int, tp: int = 1) -> float:
    """Seconds of one forward of `rows` tokens: the larger of weight reading and arithmetic."""
    looked_up = 0 if model.tied_embeddings else model.vocab * model.hidden  # an embedding is read row by row
    experts = 3 * model.layers * model.hidden * model.experts * model.moe_intermediate
    multiplied = model.parameters - looked_up - experts + touched_share(model, rows) * experts
    read = model.weights * multiplied / model.parameters
    fast = 2 if device.fp8 and bytes_per_parameter(model) < 1.5 else 1
    arithmetic = 2 * model.active_parameters * rows / (device.flops * fast * FLOP_SHARE)
    return max(read / (device.bandwidth * BANDWIDTH_SHARE), arithmetic) / tp


def recurrent_s(model: ModelFacts, device: Device, width: int, requests: int, tp: int = 1) -> float:
    """The Gated DeltaNet layers of a state-free verify: one read of the live states and the records written."""
    if model.linear is None:
        return 0.0
    state = model.linear.state_bytes_per_layer + model.linear.conv_bytes_per_layer
    rows = width * model.linear.conv_channels * 4
    return model.linear.layers * requests * (2 * state + rows) / tp / (device.bandwidth * BANDWIDTH_SHARE)


def step_s(target: ModelFacts, draft: ModelFacts | None, device: Device, width: int, setting: Setting) -> float:
    """One decode step: draft block, target verify of `width` rows a request, recurrent layers, overheads."""
    requests = setting.running_requests
    draft_s = forward_s(draft, device, setting.block * requests, setting.tp) + DRAFT_OVERHEAD_S if draft else 0.0
    verify = forward_s(target, device, width * requests, setting.tp)
    return draft_s + verify + recurrent_s(target, device, width, requests, setting.tp) + STEP_OVERHEAD_S


def predict(
    target: ModelFacts, draft: ModelFacts | None, device: Device, setting: Setting, nodes: Sequence[int]
) -> list[Prediction]:
    """Predictions per budget against the linear step of width block at the same number of running requests."""
    linear = step_s(target, draft, device, setting.block, setting)
    result = []
    for count in nodes:
        seconds = step_s(target, draft, device, count + 1, setting)
        ratio = seconds / linear
        result.append(Prediction(count, count + 1, round(seconds, 6), round(ratio, 4), round(max(0.0, ratio - 1.0), 4)))
    return result


def widest_useful(predictions: Sequence[Prediction], affordable_gain: float) -> int | None:
    """The widest budget whose break-even gain is not above what the draft can be expected to gain."""
    useful = [p.nodes for p in predictions if p.break_even_gain <= affordable_gain]
    return max(useful) if useful else None


def crossover_rows(model: ModelFacts, device: Device) -> int:
    """Rows from which arithmetic, not weight reading, decides the time of a forward."""
    rows = 1
    while rows < 4096 and forward_s(model, device, rows + 1) <= forward_s(model, device, 1) * 1.0001 + 1e-9:
        rows += 1
    return rows
