"""The JSON documents that commands print and files keep: one envelope, one way to encode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from orchestrator.errors import ExitCode
from orchestrator.wholefile import replacing

SUCCESS = (ExitCode.DONE, ExitCode.NOT_ADOPTED)


def envelope(code: int, body: Mapping[str, Any], error: str | None = None) -> dict[str, Any]:
    """A command's document: `ok` is true for the exit codes 0 and 9."""
    return {"ok": code in SUCCESS, "exit_code": int(code), "error": error, **body}


def encode(document: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    return json.dumps(document, default=_jsonable, ensure_ascii=ascii_only, indent=2) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Writes the file or leaves it as it was; an OSError names it."""
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _jsonable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} is not JSON")
