"""What every launcher shares: sizes, the device's limits, and checks that name the wrong argument."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

# Dynamic shared memory a block may use, in bytes, by compute capability (CUDA C++ Programming Guide, table
# "Technical Specifications per Compute Capability").
SHARED_LIMIT = {
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    120: 99 << 10,
}
SMALLEST_LIMIT = min(SHARED_LIMIT.values())
JUDGED_ON = (90,)  # candidates are built for the GPU that is to judge them; what a launcher may pick, for all
MULTIPROCESSORS = 132  # of the GPU that tiles and numbers of parts are chosen for (H100, H200)


def interpreting() -> bool:
    """True when Triton runs its kernels on the CPU (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def np2(n: int) -> int:
    """The least power of two >= n (n >= 1)."""
    return int(triton.next_power_of_2(int(n)))


@functools.lru_cache(maxsize=16)
def shared_limit(device_index: int) -> int:
    """Bytes of shared memory a block may use on this CUDA device (the smallest known when interpreting)."""
    if interpreting() or not torch.cuda.is_available():
        return SMALLEST_LIMIT
    major, minor = torch.cuda.get_device_capability(device_index)
    known = SHARED_LIMIT.get(major * 10 + minor)
    if known is not None:
        return known
    properties = torch.cuda.get_device_properties(device_index)
    return int(getattr(properties, "shared_memory_per_block_optin", SMALLEST_LIMIT))


def device_limit(tensor: torch.Tensor) -> int:
    """``shared_limit`` of the device a tensor lives on."""
    return shared_limit(tensor.device.index or 0 if tensor.is_cuda else 0)


def require_runnable(tensor: torch.Tensor, op: str) -> None:
    """Refuses a device on which no Triton kernel runs: CUDA before sm_80, or the CPU without the interpreter."""
    if interpreting():
        return
    if not tensor.is_cuda:
        raise RuntimeError(
            f"{op} needs a CUDA tensor, got {tensor.device.type}: use kernels.reference.{op}, "
            "or set TRITON_INTERPRET=1 before importing triton."
        )
    major, minor = torch.cuda.get_device_capability(tensor.device)
    if major < 8:
        raise RuntimeError(f"{op} needs compute capability 8.0 or newer, this device has {major}.{minor}.")


def require(condition: bool, op: str, message: str) -> None:
    """Raises ValueError naming the op when a launcher's argument is not what its kernel assumes."""
    if not condition:
        raise ValueError(f"{op}: {message}")


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel: what the compile matrix builds for each architecture."""

    op: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 1
    label: str = ""
    # The architectures whose launcher may pick this variant.
    architectures: tuple[int, ...] = field(default=tuple(SHARED_LIMIT))


def variants() -> Iterator[Variant]:
    """Every compilation that a launcher of this package can ask for."""
    from . import (
        ancestor_bits,
        compact_kv,
        conv_commit,
        conv_tree,
        entry_order,
        fa3_tables,
        gdn_replay_commit,
        gdn_tree_verify,
        topk_lse,
        tree_attention,
        tree_build,
        tree_mask,
        walk,
    )

    for module in (
        topk_lse,
        tree_build,
        ancestor_bits,
        tree_mask,
        fa3_tables,
        tree_attention,
        conv_tree,
        gdn_tree_verify,
        walk,
        compact_kv,
        gdn_replay_commit,
        conv_commit,
        entry_order,
    ):
        yield from module.variants()
