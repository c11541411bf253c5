"""Every test of the TUI has a home of its own, one time zone, and a store filled by a script."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.fixtures import Clock, Script, Stage, stage


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Stage]:
    """A deployment in the middle of its benchmark."""
    made = stage(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def script(demo: Stage) -> Script:
    return demo.script


@pytest.fixture
def clock(demo: Stage) -> Clock:
    return demo.clock
