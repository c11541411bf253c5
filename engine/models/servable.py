"""The form of a shipped target that the SGLang of this environment can load."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path


def servable(target: Path, scratch: Path) -> Path:
    """The target itself, or its Qwen3-Next form written to ``scratch`` where this SGLang lacks the hybrid's class."""
    kind = json.loads((target / "config.json").read_text(encoding="utf-8"))["model_type"]
    if kind != "qwen3_5_text" or importlib.util.find_spec("sglang.srt.models.qwen3_5_text"):
        return target
    from models.convert import to_qwen3_next

    to_qwen3_next(target, scratch)
    return scratch
