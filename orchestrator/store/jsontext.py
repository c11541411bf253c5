"""JSON at the border of the store: one canonical form, and text without characters that would harm a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from orchestrator.errors import UsageError

Mask = Callable[[str], str]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def canonical(value: Any) -> str:
    """The same bytes for the same value: sorted keys, no spaces, ASCII only, no NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a value cannot be kept as JSON ({error}): return only JSON types") from error


def clean_text(text: str) -> str:
    """Control, direction-override and lone surrogate characters become visible escapes; tab and newline stay."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\r\n", "\n"))


def masked(value: Any, mask: Mask | None) -> Any:
    """`value` with every string in it passed through `mask`."""
    if mask is None:
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(str(key)): masked(item, mask) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, mask) for item in value]
    return value


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return dict(value.items())
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")
