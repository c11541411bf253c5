"""AdamW over a time box or a step count, resumable, with its own record of what happened."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from .layers import Compiled
from .modules import ParameterTable

COMPILING_STEPS = 3


@dataclass
class Budget:
    """Stop at ``seconds`` of training, compiling not counted, or at ``steps``; ``lr`` is the peak rate."""

    seconds: float
    lr: float
    steps: int = 10**9
    warmup: int = 150
    tokens_per_step: int = 0
    checkpoint_seconds: float = 60.0


@dataclass
class Record:
    """What a training stage did; becomes part of the provenance. ``seconds`` leaves out ``compile_seconds``."""

    steps: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    tokens: int = 0
    loss: float = float("nan")
    compiled: bool = False
    resumed: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)


def say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def train(
    label: str,
    model: ParameterTable,
    loss: Callable[[], torch.Tensor],
    budget: Budget,
    generator: torch.Generator,
    checkpoint: Path,
) -> Record:
    """Minimise ``loss()``; continues from ``checkpoint`` when that file exists and removes it at the end."""
    optimizer = torch.optim.AdamW(_groups(model), lr=budget.lr, betas=(0.9, 0.95), fused=model.cos.is_cuda)
    record = _resume(checkpoint, model, optimizer, generator)
    begun = saved = time.monotonic()
    zero: float | None = None  # when training began, had it run without pause; unknown while the first steps compile
    while record.steps < budget.steps and record.seconds < budget.seconds:
        rate = _rate(record.steps, max(record.seconds / budget.seconds, record.steps / budget.steps), budget)
        value = _step(label, model, loss, optimizer, rate)
        record.steps += 1
        if zero is not None:
            record.seconds = time.monotonic() - zero
        elif record.steps >= record.resumed + COMPILING_STEPS:
            value.item()
            record.compile_seconds += round(time.monotonic() - begun, 1)
            zero = time.monotonic() - record.seconds
        if record.steps % 10 == 0 or record.steps == budget.steps:
            _note(label, record, value.item(), budget)
        if time.monotonic() - saved > budget.checkpoint_seconds:
            _save(checkpoint, model, optimizer, generator, record)
            saved = time.monotonic()
    model.round_to_checkpoint()
    record.seconds = round(record.seconds, 1)
    record.tokens, record.compiled = record.steps * budget.tokens_per_step, Compiled.enabled
    record.curve = record.curve[:: max(1, len(record.curve) // 40)]
    checkpoint.unlink(missing_ok=True)
    say(f"{label}: {record.steps} steps, {record.tokens / 1e6:.1f}M tokens, loss {record.loss:.4f}, {record.seconds} s")
    return record


def _groups(model: ParameterTable) -> list[dict]:
    decayed = [model.weight(n) for n in model.keys if model.weight(n).ndim == 2 and "embed" not in n]
    plain = [model.weight(n) for n in model.keys if model.weight(n).ndim != 2 or "embed" in n]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]


def _rate(step: int, done: float, budget: Budget) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return budget.lr * min(1.0, (step + 1) / budget.warmup) * (0.02 + 0.98 * cosine)


def _step(
    label: str, model: ParameterTable, loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, rate: float
) -> torch.Tensor:
    for group in optimizer.param_groups:
        group["lr"] = rate
    try:
        value = loss()
        value.backward()
    except Exception as error:  # inductor raises many types; without it the same step must succeed
        if not Compiled.enabled or isinstance(error, torch.OutOfMemoryError):
            raise
        say(f"{label}: torch.compile failed ({type(error).__name__}: {str(error)[:300]}); going on without it")
        Compiled.enabled = False
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value.detach()


def _note(label: str, record: Record, value: float, budget: Budget) -> None:
    if not math.isfinite(value):
        raise RuntimeError(f"{label}: the loss is {value} at step {record.steps}; lower the learning rate")
    record.loss = value if math.isnan(record.loss) else 0.8 * record.loss + 0.2 * value
    record.curve.append((record.steps, round(value, 4)))
    if record.steps % 200 == 0 or record.steps == 10:
        speed = record.steps * budget.tokens_per_step / max(record.seconds, 1e-3)
        say(
            f"{label}: step {record.steps} loss {record.loss:.3f} {record.seconds:.0f}/{budget.seconds:.0f} s "
            f"{speed / 1e3:.0f}k tokens/s"
        )


def _save(
    path: Path, model: ParameterTable, optimizer: torch.optim.Optimizer, generator: torch.Generator, record: Record
) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": generator.get_state(),
        "record": asdict(record),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def _resume(path: Path, model: ParameterTable, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> Record:
    if not path.exists():
        return Record()
    state = torch.load(path, map_location=model.cos.device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["rng"].cpu())
    record = Record(**state["record"])
    record.resumed = record.steps
    say(f"resuming {path.name} at step {record.steps}")
    return record
