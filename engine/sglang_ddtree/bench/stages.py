"""Where a decode step's time goes: a profile of a running server, cut into steps and stages.

A step begins with the kernel that prepares the drafter's block.  In a DDTREE step the ancestor bits end the draft and
the walk ends the verify pass, so every kernel has a stage by its name and its place.
"""

from __future__ import annotations

import collections
import glob
import gzip
import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .server import Server

BEGIN, DRAFTED, WALKED = "_prepare_dflash_draft_block", "_ancestor_bits", "_walk_kernel"
DRAFT = ((r"_select_kernel|_merge_kernel", "top-k"), (r"_tree_build|_ancestor_bits", "build"), (r"", "draft"))
PRODUCT = r"gemm|gemv|nvjet|cutlass|splitk|cublas"
VERIFY = (
    (r"_tree_attention|_merge_kernel|flash_?(fwd|attn)|fmha|FlashAttn", "verify attention"),
    (r"_gdn_tree_verify|_pairs_kernel|gated_delta|gating|recurrent", "verify GDN"),
    (r"_conv_tree|causal_conv|conv1d", "verify convolution"),
    (PRODUCT, "verify matrix products"),
    (r"", "verify norms, activations, copies"),
)
AFTER = ((r"_compact_kv", "compact"), (r"_gdn_replay|_conv_commit", "commit"), (r"", "inject"))
# Calls in which the host waits for the device.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


@dataclass
class Step:
    """One decode step: microseconds by stage, and from its first kernel to the next step's."""

    span: float
    stages: collections.Counter[str] = field(default_factory=collections.Counter)
    kernels: int = 0
    by_name: collections.Counter[str] = field(default_factory=collections.Counter)
    calls: collections.Counter[str] = field(default_factory=collections.Counter)


def _named(name: str, table: Iterable[tuple[str, str]]) -> str:
    return next(stage for pattern, stage in table if re.search(pattern, name, re.IGNORECASE))


def _stages_of(kernels: list[dict[str, Any]]) -> list[str]:
    """A stage for each kernel of one step."""
    names = [str(kernel["name"]) for kernel in kernels]
    drafted = next((i for i, name in enumerate(names) if DRAFTED in name), -1)
    walked = next((i for i, name in enumerate(names) if WALKED in name), -1)
    if walked < 0:  # linear DFLASH has neither mark
        return [_named(name, VERIFY).removeprefix("verify ") for name in names]
    head = max((i for i in range(walked) if re.search(PRODUCT, names[i], re.IGNORECASE)), default=walked)
    found = []
    for i, name in enumerate(names):
        if i <= drafted:
            found.append(_named(name, DRAFT))
        elif i < walked:
            found.append("sample" if i > head else _named(name, VERIFY))
        else:
            found.append("walk" if i == walked else _named(name, AFTER))
    return found


def cut(events: Iterable[dict[str, Any]]) -> list[Step]:
    """The whole steps in a trace's events, the first two (which follow the prefill) left out."""
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in e]
    device.sort(key=lambda e: float(e["ts"]))
    begins = [i for i, e in enumerate(device) if BEGIN in str(e["name"])]
    steps = []
    for begin, end in itertools.pairwise(begins[2:]):
        kernels = device[begin:end]
        step = Step(span=float(device[end]["ts"]) - float(kernels[0]["ts"]), kernels=len(kernels))
        busy, reached = 0.0, 0.0
        for kernel, stage in zip(kernels, _stages_of(kernels), strict=True):
            start, stop = float(kernel["ts"]), float(kernel["ts"]) + float(kernel["dur"])
            own = max(0.0, stop - max(start, reached))  # kernels of other streams may run at the same time
            step.stages[stage] += own
            step.by_name[str(kernel["name"])] += own
            step.calls[str(kernel["name"])] += 1
            busy += own
            reached = max(reached, stop)
        step.stages["gaps"] = step.span - busy
        steps.append(step)
    return steps


def waits(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Per step: the host's waits for the device, and copies to the host, between the first and last whole step."""
    listed = list(events)
    marks = sorted(float(e["ts"]) for e in listed if e.get("cat") == "kernel" and BEGIN in str(e["name"]))[2:]
    if len(marks) < 2:
        return {}
    found: collections.Counter[str] = collections.Counter(
        dict.fromkeys((*WAITS, "copies to the host", "to pageable memory"), 0)
    )
    for event in listed:
        if not marks[0] <= float(event.get("ts", 0)) < marks[-1]:
            continue
        name = str(event.get("name", ""))
        if event.get("cat") == "cuda_runtime" and name in WAITS:
            found[name] += 1
        elif event.get("cat") == "gpu_memcpy" and "DtoH" in name:
            found["copies to the host"] += 1
            found["to pageable memory"] += "Pageable" in name
    return {name: n / (len(marks) - 1) for name, n in found.items()}


def summary(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Mean microseconds of each stage over the steps of a trace, and the waits."""
    listed = list(events)
    steps = cut(listed)
    if not steps:
        return {"error": "no whole step in the profile"}
    totals: collections.Counter[str] = collections.Counter()
    for step in steps:
        totals.update(step.stages)
    return {
        "steps": len(steps),
        "us_per_step": sum(step.span for step in steps) / len(steps),
        "kernels_per_step": sum(step.kernels for step in steps) / len(steps),
        "us": {stage: total / len(steps) for stage, total in totals.most_common()},
        "longest_kernels": _longest(steps),
        "waits_per_step": waits(listed),
    }


def _longest(steps: list[Step], most: int = 16) -> list[dict[str, Any]]:
    """The kernels that take most of a step: name, microseconds and calls per step."""
    us: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for step in steps:
        us.update(step.by_name)
        calls.update(step.calls)
    return [
        {"kernel": name[:90], "us": total / len(steps), "calls": calls[name] / len(steps)}
        for name, total in us.most_common(most)
    ]


def profile(server: Server, ids: Any, tokens: int = 20, timeout: float = 40) -> dict[str, Any]:
    """Generate under SGLang's profiler and sum the trace up."""
    server.generate(ids, 4)  # what is compiled or allocated at first use is not part of a step
    with tempfile.TemporaryDirectory() as folder:
        _call(server, "/start_profile", {"output_dir": folder, "activities": ["CPU", "GPU"], "with_stack": False})
        server.generate(ids, tokens)
        _call(server, "/stop_profile", {})
        path = _finished_trace(Path(folder), timeout)
        if path is None:
            return {"error": f"no trace after {timeout:.0f} s"}
        with gzip.open(path) as file:
            return summary(json.load(file)["traceEvents"])


def _call(server: Server, path: str, body: dict[str, Any]) -> None:
    """A POST whose answer is a line of text."""
    with server.open(path, body) as answer:
        answer.read()


def _finished_trace(folder: Path, timeout: float) -> str | None:
    """The trace once its size no longer changes."""
    until, size = time.monotonic() + timeout, -1
    while time.monotonic() < until:
        found = glob.glob(str(folder / "**" / "*.json.gz"), recursive=True)
        now = Path(found[0]).stat().st_size if found else -1
        if found and now == size and now > 0:
            return found[0]
        size = now
        time.sleep(0.5)
    return None
