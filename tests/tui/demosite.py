"""Makes the demo graph known to this program's processes, as an installed package would: a dist-info on the path."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = """\
[orchestrate.graphs]
demo = tests.tui.demograph.plans:demo
demo-back = tests.tui.demograph.plans:back
"""


def install_demo_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "site" / "demograph-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demograph\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{ROOT}")
    monkeypatch.syspath_prepend(str(info.parent))
