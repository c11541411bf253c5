"""The op interface: one name per op; the Triton kernel runs on CUDA tensors, the reference everywhere else.

Signatures, shapes and dtypes are those of ``kernels/reference/<op>.py``; a Triton twin lives in ``kernels/<op>.py``
under the same name with the same signature.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

NAMES = (
    "topk_lse",
    "tree_build",
    "tree_mask",
    "walk",
    "conv_tree",
    "gdn_tree_verify",
    "gdn_replay_commit",
    "conv_commit",
    "compact_kv",
    "ancestor_bits",
    "tree_attention",
)


@cache
def implementation(name: str, device_type: str) -> Callable[..., Any]:
    """The function that runs op ``name`` on a device type; ImportError where a kernel is missing."""
    if name not in NAMES:
        raise ValueError(f"There is no op {name!r}: the ops are {', '.join(NAMES)}.")
    package = "kernels" if device_type == "cuda" else "kernels.reference"
    module = importlib.import_module(f".{package}.{name}", __package__)
    return getattr(module, name)


def missing(device_type: str) -> list[str]:
    """Ops that have no implementation for a device type."""
    absent = []
    for name in NAMES:
        try:
            implementation(name, device_type)
        except ImportError:
            absent.append(name)
    return absent


def _op(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return implementation(name, _device_type(args))(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"See kernels/reference/{name}.py."
    return call


def _device_type(args: tuple[Any, ...]) -> str:
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.device.type
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0].device.type
        if hasattr(value, "tok"):  # TreeTables
            return value.tok.device.type
    raise TypeError("An op needs a tensor among its positional arguments to choose its device.")


topk_lse = _op("topk_lse")
tree_build = _op("tree_build")
tree_mask = _op("tree_mask")
walk = _op("walk")
conv_tree = _op("conv_tree")
gdn_tree_verify = _op("gdn_tree_verify")
gdn_replay_commit = _op("gdn_replay_commit")
conv_commit = _op("conv_commit")
compact_kv = _op("compact_kv")
ancestor_bits = _op("ancestor_bits")
tree_attention = _op("tree_attention")
