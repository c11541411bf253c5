"""What a DDTREE server will allocate on a GPU, in bytes, before any weight is loaded.

    python -m sglang_ddtree.preflight TARGET DRAFT --rows 65 --requests 8 --free-gib 130

SGLang divides a card's free memory at --mem-fraction-static: weights, states and the KV pool lie below it, activations
and graph buffers above.  The buffers of DDTREE are counted by building the same objects without memory behind them
(device "meta"), so the figures can't drift from the code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .config import DDTreeConfig
from .static_tree import StaticTree

GIB = 1 << 30
MOST_ROWS = 1025


@dataclass(frozen=True)
class Shape:
    """What matters of a target, its draft and the server's arguments; sizes per layer, dtype_bytes of the weights."""

    weights: int
    hidden: int
    vocabulary: int
    attention_layers: int
    kv_row: int  # bytes of K and V of one token in one attention layer
    draft_layers: int
    draft_kv_row: int
    taps: int  # hidden states of the target that the draft reads
    recurrent_layers: int = 0
    channels: int = 0
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv: int = 0
    dtype_bytes: int = 2
    state_bytes: int = 4
    block: int = 16
    topk: int = 32
    context: int = 32768
    tokens: int = 0  # --max-total-tokens; 0 where SGLang takes what is left

    def on_one_of(self, ranks: int) -> Shape:
        """What one rank of a tensor-parallel group holds; logits and tables are whole on each."""
        split = ("weights", "kv_row", "draft_kv_row", "channels", "key_heads", "value_heads")
        return replace(self, **{name: getattr(self, name) // ranks for name in split})


@dataclass(frozen=True)
class Ask:
    """Verify rows per request and running requests."""

    rows: int
    requests: int


def static_bytes(shape: Shape, ask: Ask) -> dict[str, int]:
    """Bytes by purpose of what lives below --mem-fraction-static; KV is the least that lets every request take a step."""
    tokens = max(shape.tokens, ask.requests * (2 * ask.rows + shape.block))
    row = shape.attention_layers * shape.kv_row + shape.draft_layers * shape.draft_kv_row
    found = {
        "weights": shape.weights,
        "tree tables and masks": nbytes(StaticTree(ask.requests, ask.rows, shape.block - 1, "meta")),
        "request rows": (ask.requests + 1) * (shape.context + 4 + 2 * ask.rows) * 4,
        "kv": tokens * row,
    }
    if shape.recurrent_layers:
        found |= {"records": record_bytes(shape, ask), "recurrent states": state_bytes(shape, ask)}
    return found


def dynamic_bytes(shape: Shape, ask: Ask) -> dict[str, int]:
    """Bytes by purpose of what lives above it; logits are those of all rows, float32, and once more while they are cast."""
    from .kernels.topk_lse import TopKScratch

    rows, drafted = ask.rows * ask.requests, (shape.block - 1) * ask.requests
    return {
        "logits": rows * shape.vocabulary * (4 + shape.dtype_bytes),
        "draft logits and candidates": drafted * shape.vocabulary * shape.dtype_bytes
        + nbytes(TopKScratch.empty(drafted, shape.vocabulary, min(shape.topk, 64), "meta")),
        "hidden states": rows * shape.hidden * shape.dtype_bytes * (shape.taps + 2),
    }


def record_bytes(shape: Shape, ask: Ask) -> int:
    """The inputs of every recurrent layer for every row, and the scratch that the layers share."""
    from .kernels.gdn_tree_verify import VerifyScratch

    rows = ask.rows * ask.requests
    kept = shape.recurrent_layers * rows * (shape.channels + 2 * shape.value_heads) * shape.dtype_bytes
    shared = rows * (shape.channels + shape.value_heads * shape.value_dim) * shape.dtype_bytes
    scratch = VerifyScratch.empty(ask.requests, ask.rows, shape.key_heads, "meta")
    return kept + shared + nbytes(scratch)


def state_bytes(shape: Shape, ask: Ask) -> int:
    """One live state per running request and one spare slot; what the prefix cache keeps beside them is SGLang's choice."""
    recurrent = shape.value_heads * shape.key_dim * shape.value_dim * shape.state_bytes
    window = shape.channels * (shape.conv - 1) * shape.dtype_bytes
    return shape.recurrent_layers * (ask.requests + 1) * (recurrent + window)


def nbytes(holder: Any) -> int:
    """Bytes of all tensors that an object holds; tensors that share memory count once."""
    seen: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            seen[id(value)] = value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, dict):
            visit(list(value.values()))
        elif hasattr(value, "__dict__"):
            visit(vars(value))

    visit(holder)
    return sum(seen.values())


def fits(shape: Shape, ask: Ask, free: int, fraction: float) -> bool:
    below, above = static_bytes(shape, ask), dynamic_bytes(shape, ask)
    return sum(below.values()) <= free * fraction and sum(above.values()) <= free * (1 - fraction)


def refusal(shape: Shape, ask: Ask, free: int, fraction: float) -> str | None:
    """One sentence where an ask can't be served in ``free`` bytes, with the largest that can; None where it can."""
    if fits(shape, ask, free, fraction):
        return None
    parts = static_bytes(shape, ask) | dynamic_bytes(shape, ask)
    biggest = ", ".join(f"{name} {_gib(size)}" for name, size in sorted(parts.items(), key=lambda p: -p[1])[:4])
    rows = _largest(lambda n: fits(shape, replace(ask, rows=n), free, fraction), shape.block, ask.rows)
    requests = _largest(lambda n: fits(shape, replace(ask, requests=n), free, fraction), 1, ask.requests)
    ways = []
    if rows:
        ways.append(f"--speculative-num-draft-tokens {rows}")
    if requests:
        ways.append(f"--max-running-requests {requests}")
    advice = f"at most {' or '.join(ways)} fits" if ways else "no smaller tree fits either, so serve a smaller model"
    return (
        f"DDTREE with {ask.rows} rows for {ask.requests} running requests needs {_gib(sum(parts.values()))} ({biggest}), "
        f"which {_gib(free)} of free memory at --mem-fraction-static {fraction:g} does not hold: {advice}."
    )


def _largest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The greatest number in low..high for which a property holds that small numbers have; 0 where none has it."""
    if not holds(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def shape_of(target: Path, draft: Path, config: DDTreeConfig, context: int | None = None, tokens: int = 0) -> Shape:
    """Read off the two folders' config.json and weight files; KeyError names a field that is missing."""
    whole = json.loads((target / "config.json").read_text(encoding="utf-8"))
    text = whole.get("text_config", whole)
    small = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    kinds = text.get("layer_types") or ["full_attention"] * text["num_hidden_layers"]
    recurrent = sum(kind == "linear_attention" for kind in kinds)
    taps = small.get("dflash_config", small).get("target_layer_ids") or [0] * 5
    shape = Shape(
        weights=sum(file.stat().st_size for folder in (target, draft) for file in folder.glob("*.safetensors")),
        hidden=text["hidden_size"], vocabulary=text["vocab_size"], attention_layers=len(kinds) - recurrent,
        kv_row=_kv_row(text), draft_layers=small["num_hidden_layers"], draft_kv_row=_kv_row(small), taps=len(taps),
        block=config.block, topk=config.topk, context=context or text["max_position_embeddings"], tokens=tokens,
    )  # fmt: skip
    if not recurrent:
        return shape
    keys, values = text["linear_num_key_heads"], text["linear_num_value_heads"]
    key_dim, value_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
    return replace(
        shape, recurrent_layers=recurrent, channels=2 * keys * key_dim + values * value_dim, key_heads=keys,
        value_heads=values, key_dim=key_dim, value_dim=value_dim, conv=text["linear_conv_kernel_dim"],
    )  # fmt: skip


def _kv_row(text: dict[str, Any]) -> int:
    heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return int(2 * heads * dim * 2)


def free_memory(device: int = 0) -> int | None:
    """Free bytes of a GPU, asked of nvidia-smi so that no context is made in this process; None where it can't say.

    device: as this process counts them, which CUDA_VISIBLE_DEVICES may change and nvidia-smi does not look at.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = visible[device].strip() if visible != [""] and device < len(visible) else str(device)
    command = ["nvidia-smi", f"--id={name}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return int(done.stdout.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def check(args: Any, config: DDTreeConfig) -> str | None:
    """The refusal for SGLang's arguments on this machine; None where they fit or the folders can't be read here."""
    target, draft = Path(args.model_path), Path(args.speculative_draft_model_path)
    first = int(getattr(args, "base_gpu_id", 0) or 0)
    step = int(getattr(args, "gpu_id_step", 1) or 1)
    sizes = [free_memory(first + rank * step) for rank in range(int(args.tp_size))]
    known = [size for size in sizes if size is not None]
    free = min(known) if len(known) == len(sizes) else None  # every rank holds the same
    if free is None or not (target / "config.json").is_file() or not (draft / "config.json").is_file():
        return None
    try:
        shape = shape_of(target, draft, config, args.context_length, int(args.max_total_tokens or 0))
        shape = shape.on_one_of(int(args.tp_size))
    except KeyError:
        return None  # an architecture that this does not know is judged by SGLang's own allocation
    return refusal(
        shape, Ask(config.width, int(args.max_running_requests)), free, float(args.mem_fraction_static or 0.85)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.preflight")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--rows", type=int, default=32, help="verify rows per request (--speculative-num-draft-tokens)")
    parser.add_argument("--requests", type=int, default=8, help="--max-running-requests")
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--free-gib", type=float, help="the default is what nvidia-smi says")
    parser.add_argument("--fraction", type=float, default=0.85, help="--mem-fraction-static")
    parser.add_argument("--context", type=int)
    options = parser.parse_args(argv)
    shape = shape_of(options.target, options.draft, DDTreeConfig.read(options.block, options.rows), options.context)
    ask = Ask(options.rows, options.requests)
    for name, size in (static_bytes(shape, ask) | dynamic_bytes(shape, ask)).items():
        print(f"{name:30} {size:>16,} bytes {_gib(size):>14}")
    free = int(options.free_gib * GIB) if options.free_gib else free_memory()
    if free is None:
        print("free memory is unknown here: pass --free-gib", file=sys.stderr)
        return 2
    sentence = refusal(shape, ask, free, options.fraction)
    print(sentence or f"fits in {_gib(free)}")
    return 1 if sentence else 0


if __name__ == "__main__":
    sys.exit(main())
