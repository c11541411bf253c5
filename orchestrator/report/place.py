"""Where the report of a run lies; a module of its own, so that naming the place imports no plots."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(".run", "reports")


def report_path(home: Path, run_id: str) -> Path:
    """The report of a run, beside the inventory."""
    return home / FOLDER / run_id / "report.html"
