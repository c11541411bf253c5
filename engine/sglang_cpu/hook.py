"""Import hook: runs a patch right after its module was executed, and serves the stand-in of ``sgl_kernel``."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from .patches import PATCHES, Patch
from .versions import cuda_visible, refusal, sglang_version

STANDIN = Path(__file__).parent / "standin"


class PatchFinder(importlib.abc.MetaPathFinder):
    """Hands out the ordinary spec of a module, with its patches run after the module's own code."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self.waiting: dict[str, list[Patch]] = {}
        for patch in patches:
            self.waiting.setdefault(patch.module, []).append(patch)
        self.applied: list[Patch] = []
        self._looking: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "sgl_kernel":
            return importlib.util.spec_from_file_location(
                name, STANDIN / "__init__.py", submodule_search_locations=[str(STANDIN)]
            )
        if name == "sglang" and (sentence := refusal()):
            raise ImportError(sentence)
        if name == "torchvision":
            define_torchvision_ops()
        patches = self.waiting.get(name)
        if patches is None or name in self._looking:
            return None
        self._looking.add(name)  # the search below asks this finder again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is not None and spec.loader is not None:
            self._patch_after_exec(spec, patches)
        return spec

    def _patch_after_exec(self, spec: importlib.machinery.ModuleSpec, patches: Sequence[Patch]) -> None:
        loader = spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for patch in patches:
                patch.apply(module)
                self.applied.append(patch)

        loader.exec_module = exec_module  # type: ignore[method-assign]


def define_torchvision_ops() -> None:
    """torchvision's CUDA-built extension does not load beside CPU torch; its Python part needs these names only."""
    if _KEPT:
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        library.define(op + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


_KEPT: list[object] = []  # a torch.library.Library takes its definitions back when it is collected


def finder() -> PatchFinder | None:
    """The hook of this process, None when it isn't installed."""
    return next((f for f in sys.meta_path if isinstance(f, PatchFinder)), None)


def install() -> None:
    """Put the hook first on ``sys.meta_path``; a no-op on a CUDA machine or when it is there already."""
    if cuda_visible() or finder() is not None:
        return
    version = sglang_version()
    sys.meta_path.insert(0, PatchFinder([p for p in PATCHES if version in p.versions]))
