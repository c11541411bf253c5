"""Draws the README's pictures from a scripted deployment: `python -m tests.tui.pictures [DIR] [--png]`.

Into docs/pictures by default, as SVG; with --png beside them as PNG, to be looked at (needs Chromium).
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.tui.browser import chromium
from tests.tui.driving import make_app, opened, rest, screen_text, until
from tests.tui.fixtures import Stage, stage
from tests.tui.svg import lean

PICTURES = {
    "tui-run": ((120, 34), "textual-dark", ("w",), "Why"),
    "tui-bench": ((110, 52), "textual-dark", ("3",), "Time per token"),
    "tui-host": ((100, 38), "textual-light", ("2",), "Dead-man timer"),
}


async def draw(made: Stage, folder: Path) -> list[Path]:
    paths = []
    for name, (size, theme, keys, text) in PICTURES.items():
        async with opened(made, size=size, app=make_app(made, theme=theme)) as (app, pilot):
            await until(pilot, lambda app=app: app.durations.runs)
            await pilot.press(*keys)
            await until(pilot, lambda app=app, text=text: text in screen_text(app))
            await rest(pilot)
            path = folder / f"{name}.svg"
            path.write_text(lean(app.export_screenshot(title="orchestrate tui")), encoding="utf-8")
            paths.append(path)
    return paths


def to_png(svg: Path) -> Path | None:
    """Through Chromium, which lays text out as a browser does; None where it is not installed."""
    program = chromium()
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text(encoding="utf-8"))
    if program is None or size is None:
        return None
    png = svg.with_suffix(".png")
    width, height = (int(float(part)) + 1 for part in size.groups())
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},{height}",
               f"--screenshot={png}", svg.resolve().as_uri()]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return png


def main() -> None:
    png = "--png" in sys.argv
    folder = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "docs/pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = name
        made = stage(Path(name))
        with made.store:
            for svg in asyncio.run(draw(made, folder)):
                print(svg, (to_png(svg) or "(no Chromium: no PNG)") if png else "")


if __name__ == "__main__":
    main()
