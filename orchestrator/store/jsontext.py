"""JSON at the border of the store: one canonical form, and text without characters that would harm a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from orchestrator.errors import OrchestrateError

Mask = Callable[[str], str]

# Escapes in JSON text: a backslash or a pair of surrogates first, so that what is left for group 1 stands alone.
_ESCAPES = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(\\ud[89a-f][0-9a-f]{2})")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class NotJsonError(OrchestrateError):
    """A task or a caller gave something that is no JSON value."""


def canonical(value: Any) -> str:
    """The same bytes for the same value: sorted keys, no spaces, ASCII only, no NaN, no lone surrogates."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJsonError(f"a value cannot be kept as JSON ({error}): return only JSON types") from error
    return _ESCAPES.sub(_visible, text) if "\\ud" in text else text


def storable(text: str) -> str:
    """`text` as every database keeps it: NUL and bytes that were no UTF-8 become visible escapes."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def clean_text(text: str) -> str:
    """Control, direction-override and lone surrogate characters become visible escapes; tab and newline stay."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\r\n", "\n"))


def _visible(found: re.Match[str]) -> str:
    """The escape of a lone surrogate as text; pairs and other escapes as they are."""
    return f"\\{found.group()}" if found.group(1) else found.group()


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
