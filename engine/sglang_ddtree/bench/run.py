"""``python -m sglang_ddtree bench [--ops OP,...] [--json FILE]``: prints a table and keeps the rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from .report import write_result


def run(json_file: str | None, ops: str = "") -> int:
    """The ops named, all by default.  Exit code 0 when every measurement worked, 1 when one failed, 2 without a GPU."""
    if not torch.cuda.is_available():
        print("bench needs a CUDA GPU; none is visible here.", file=sys.stderr)
        return 2
    from .kernels import rows

    found = []
    for row in rows(tuple(filter(None, ops.split(",")))):
        found.append(row)
        print(line(row), flush=True)
        if json_file:  # after every row, so that an interrupted run leaves what it measured
            write_result(Path(json_file), "kernel", found)
    return 1 if any("error" in row for row in found) else 0


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    shown = [f"{row['op']:16}"]
    for key, value in row.items():
        if key != "op":
            shown.append(f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}")
    return " ".join(shown)
