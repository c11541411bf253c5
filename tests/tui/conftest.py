"""Every test of the TUI has a home of its own, one time zone, and a store filled by a script."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.driving import settled_messages
from tests.tui.fixtures import RUN_ID, Clock, Script, Stage, new_store, stage


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for module in ("app", "pilot"):  # Textual waits for an idle processor, which on a busy machine is up to a second
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", settled_messages)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A folder with a deployment in the middle of its benchmark, filled once, and what its clock shows."""
    made = stage(tmp_path_factory.mktemp("filled"))
    made.store.close()
    return made.folder, made.clock.now


@pytest.fixture
def demo(filled: tuple[Path, float], tmp_path: Path) -> Iterator[Stage]:
    """A copy of the filled folder, whose script goes on from there."""
    folder, now = filled
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    clock = Clock(now)
    with new_store(tmp_path, clock) as store:
        script = Script(store, clock, RUN_ID, tasks={task.key: task for task in store.tasks.list(RUN_ID)})
        yield Stage(tmp_path, store, clock, script)


@pytest.fixture
def script(demo: Stage) -> Script:
    return demo.script


@pytest.fixture
def clock(demo: Stage) -> Clock:
    return demo.clock
