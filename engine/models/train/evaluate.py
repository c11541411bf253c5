"""What a trained pair accepts, by the oracle: on documents that training never saw, and on the project's own prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from baselines.prompts import OWN_SETS, Prompt, load_prompts
from baselines.run import Request, make_baseline

from .dataset import Dataset
from .loop import say

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 24, 128, 128
BUDGETS = (15, 16, 22, 32, 64)


def held_out_prompts(stream: torch.Tensor, count: int, length: int) -> list[Prompt]:
    """``count`` stretches of ``length`` tokens, evenly spread over the held-out documents."""
    starts = torch.linspace(0, stream.numel() - length, count).long().tolist()
    return [
        Prompt(f"held-out-{n}", "held-out", ids=stream[start : start + length].tolist())
        for n, start in enumerate(starts)
    ]


def evaluate(folder: Path, data: Dataset, device: str, scale: int = 1) -> dict[str, Any]:
    """Tokens per step of chain and trees, float32; also written into FOLDER/provenance.json as ``acceptance``."""
    own = [prompt for path in sorted(OWN_SETS.glob("*.jsonl")) for prompt in load_prompts(path)]
    sets: dict[str, Sequence[Prompt]] = {
        "held_out": held_out_prompts(data.held_out, PROMPTS // scale, PROMPT_TOKENS // scale),
        "own": own[:: 6 * scale] if scale > 1 else own,
    }
    request = Request(folder / "target", folder / "draft", BUDGETS, NEW_TOKENS // scale, device=device, batch=24)
    found: dict[str, Any] = {"new_tokens": request.new_tokens, "dtype": request.dtype}
    for name, prompts in sets.items():
        summary = make_baseline(request, prompts, say=say).summary()
        found[name] = {kind: summary[kind] for kind in ("all", "non_repetitive", "repetitive")}
    path = folder / "provenance.json"
    provenance = json.loads(path.read_text(encoding="utf-8")) | {"acceptance": found}
    path.write_text(json.dumps(provenance, indent=1), encoding="utf-8")
    return found


def text(name: str, found: dict[str, Any]) -> str:
    """One line per set of prompts: the chain, 15 and 64 nodes, and their ratios."""
    lines = []
    for part in ("held_out", "own"):
        for kind, row in found[part].items():
            rates, gains = row["tokens_per_step"], row["break_even_step_cost"]
            if rates:
                trees = ", ".join(f"{mode} {rates[mode]:.2f} ({gains[mode]:.2f}x)" for mode in ("15", "64"))
                lines.append(f"{name} {part} {kind}: {row['prompts']} prompts, chain {rates['chain']:.2f}, {trees}")
    return "\n".join(lines)
