"""The form of a shipped target that the SGLang of this environment can load."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

OWN_CLASS = Path("srt", "models", "qwen3_5_text.py")


def servable(target: Path, scratch: Path) -> Path:
    """The target itself, or its Qwen3-Next form written to ``scratch`` where this SGLang lacks the hybrid's class."""
    kind = json.loads((target / "config.json").read_text(encoding="utf-8"))["model_type"]
    if kind != "qwen3_5_text" or _has_its_class():
        return target
    from models.convert import to_qwen3_next

    to_qwen3_next(target, scratch)
    return scratch


def _has_its_class() -> bool:
    """Looked up as a file: importing SGLang here would take seconds, and a device."""
    found = importlib.util.find_spec("sglang")
    return any((Path(folder) / OWN_CLASS).is_file() for folder in (found and found.submodule_search_locations) or ())
