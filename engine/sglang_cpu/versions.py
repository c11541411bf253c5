"""Which SGLang releases the patches were written for, and whether this machine is one for them."""

from __future__ import annotations

import glob
import os
from importlib import metadata

SUPPORTED = ("0.5.20", "0.5.23")


def sglang_version() -> str | None:
    """Version of the SGLang that ``import sglang`` would load, None without one."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def refusal() -> str | None:
    """One sentence saying why the CPU patches can't be used here, None when they can."""
    version = sglang_version()
    if version is None:
        return "sglang_cpu found no sglang in this environment: install sglang==0.5.20 with --no-deps beside it."
    if version not in SUPPORTED:
        known = " and ".join(SUPPORTED)
        return f"sglang_cpu has patches for sglang {known}, not {version}: install one of those versions."
    return None


def cuda_visible() -> bool:
    """True when an NVIDIA device is visible to this process (found without importing torch)."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    return not hidden and bool(glob.glob("/dev/nvidia[0-9]*"))
