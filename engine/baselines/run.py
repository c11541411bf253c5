"""Make a baseline for a pair and a prompt set: batched, with progress, resumable."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import oracle
from .baseline import Baseline, PromptRecord, record_from_json
from .draft import DraftModel
from .errors import BaselineError
from .hashing import folder_name, model_hash, tokenizer_hash
from .prompts import Prompt
from .target import TargetModel
from .tree import TreePolicy

DEFAULT_BUDGETS = (15, 16, 22, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Request:
    """What to measure. ``dtype`` is a torch name; ``batch`` is how many prompts generate together."""

    target: Path
    draft: Path
    budgets: tuple[int, ...] = DEFAULT_BUDGETS
    new_tokens: int = 192
    policy: TreePolicy = field(default_factory=TreePolicy)
    device: str = "cpu"
    dtype: str = "float32"
    batch: int = 8


def make_baseline(
    request: Request, prompts: Sequence[Prompt], partial: Path | None = None, say: Any = None
) -> Baseline:
    """Measure every prompt; with ``partial``, a file that keeps finished prompts, a second call continues."""
    say = say or (lambda message: print(message, file=sys.stderr, flush=True))
    device, dtype = torch.device(request.device), getattr(torch, request.dtype)
    identity = {
        "target": {"name": folder_name(request.target), "sha256": model_hash(request.target)},
        "draft": {"name": folder_name(request.draft), "sha256": model_hash(request.draft)},
        "tokenizer": {"name": folder_name(request.target), "sha256": tokenizer_hash(request.target)},
    }
    draft = DraftModel(request.draft, device, dtype)
    target = TargetModel(request.target, device, dtype)
    encoded = _encode(prompts, target, oracle.continuation_length(request.new_tokens, draft.config.block_size))
    store = _Partial(partial, identity, request)
    todo = [item for item in encoded if item[0].id not in store.done]
    if store.done:
        say(f"{len(store.done)} of {len(encoded)} prompts are there from an earlier run")
    started = time.monotonic()
    # Prompts of similar length generate together, so that little of a batch is padding.
    todo.sort(key=lambda item: len(item[1]))
    for start in range(0, len(todo), request.batch):
        for record in _measure_batch(todo[start : start + request.batch], target, draft, request):
            store.add(record)
        finished = min(start + request.batch, len(todo))
        left = (time.monotonic() - started) / finished * (len(todo) - finished)
        say(
            f"{len(store.done)}/{len(encoded)} prompts, chain {_rate(store, 'chain')}, "
            f"{request.budgets[-1]} nodes {_rate(store, str(request.budgets[-1]))} tokens/step, about {left:.0f} s left"
        )
    return Baseline(
        **identity,
        policy=asdict(request.policy),
        block_size=draft.config.block_size,
        new_tokens=request.new_tokens,
        budgets=list(request.budgets),
        prompts=[store.done[prompt.id] for prompt, _ in encoded],
        made_with={
            "torch": torch.__version__,
            "device": _device_name(device),
            "dtype": request.dtype,
            "seconds": round(time.monotonic() - started, 1),
        },
    )


def _encode(prompts: Sequence[Prompt], target: TargetModel, extra: int) -> list[tuple[Prompt, list[int]]]:
    encoded = []
    seen: set[str] = set()
    for prompt in prompts:
        ids = prompt.encode(target.tokenizer)
        if prompt.id in seen:
            raise BaselineError(f"Two prompts are called {prompt.id!r}: give each its own id.")
        seen.add(prompt.id)
        if not ids:
            raise BaselineError(f"Prompt {prompt.id!r} is empty: give it text or leave it out.")
        if len(ids) + extra > target.max_positions:
            raise BaselineError(
                f"Prompt {prompt.id!r} has {len(ids)} tokens, which with {extra} new ones passes the model's context of "
                f"{target.max_positions}: shorten it, leave it out, or lower --new-tokens."
            )
        encoded.append((prompt, ids))
    return encoded


def _measure_batch(
    items: list[tuple[Prompt, list[int]]], target: TargetModel, draft: DraftModel, request: Request
) -> list[PromptRecord]:
    count = oracle.continuation_length(request.new_tokens, draft.config.block_size)
    texts = target.greedy([ids for _, ids in items], count)
    return [
        oracle.measure(
            target, draft, prompt.id, prompt.category, ids, text, request.new_tokens, request.budgets, request.policy
        )
        for (prompt, ids), text in zip(items, texts, strict=True)
    ]


class _Partial:
    """Finished prompts on disk, one JSON line each, under a first line that says what they belong to."""

    def __init__(self, path: Path | None, identity: dict[str, Any], request: Request) -> None:
        self.path, self.done = path, {}
        facts = [identity, request.budgets, request.new_tokens, asdict(request.policy), request.dtype]
        self.key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        if path is None:
            return
        if path.exists() and self._read(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"key": self.key}) + "\n", encoding="utf-8")

    def _read(self, path: Path) -> bool:
        """False when the file belongs to another request; a line cut off by a crash is dropped."""
        lines = path.read_text(encoding="utf-8").splitlines()
        whole = []
        for line in lines:
            try:
                whole.append(json.loads(line))
            except json.JSONDecodeError:
                break
        if not whole or whole[0].get("key") != self.key:
            return False
        for raw in whole[1:]:
            record = record_from_json(raw)
            self.done[record.id] = record
        path.write_text("".join(json.dumps(raw) + "\n" for raw in whole), encoding="utf-8")
        return True

    def add(self, record: PromptRecord) -> None:
        self.done[record.id] = record
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(record)) + "\n")


def _rate(store: _Partial, mode: str) -> str:
    steps = [n for record in store.done.values() for n in record.accept[mode]]
    return f"{sum(steps) / max(1, len(steps)):.2f}"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
