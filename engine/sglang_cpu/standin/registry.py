"""Makes functions of a module callable as ``torch.ops.sgl_kernel.<name>``."""

from __future__ import annotations

from types import ModuleType

import torch


def define(*modules: ModuleType) -> None:
    """Every function whose name ends in ``_cpu`` becomes an attribute of the op namespace."""
    for module in modules:
        for name, function in vars(module).items():
            if name.endswith("_cpu") and callable(function):
                setattr(torch.ops.sgl_kernel, name, function)
