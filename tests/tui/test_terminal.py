"""Under a real terminal: tmux sends the keys and reads the screen; the run is one of the real command line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store.records import RunState
from tests.tui.demosite import install_demo_graph
from tests.tui.terminal import Terminal, wait
from tests.tui.test_operating import Site

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    install_demo_graph(tmp_path, monkeypatch)
    made = Site(tmp_path)
    (made.files / "step-one.fail").touch()
    assert made.run().returncode == 4
    (made.files / "step-one.fail").unlink()
    yield made
    for hold in made.files.glob("*.hold"):
        hold.unlink()
    made.store.close()


@pytest.fixture
def terminal(tmp_path: Path, site: Site) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "orchestrator", "tui", "--hosts", str(site.folder / "hosts.yaml")]
    made = Terminal(tmp_path, command)
    yield made
    made.close()


def test_start_watch_scroll_cancel_resume_leave(terminal: Terminal, site: Site) -> None:
    (site.files / "step-two.hold").touch()
    terminal.shows("ROLLED BACK")
    terminal.keys("r")
    terminal.shows("3 tasks are left: step-one, step-two, step-three.")
    terminal.keys("Tab", "Enter")
    # enough lines that there is something to scroll
    wait(lambda: re.search(r"waits, round ([4-9]\d|\d{3})", terminal.screen), lambda: terminal.screen)
    terminal.keys("x", "Enter", "k", "k")
    terminal.shows("paused, End follows")
    terminal.keys("End")
    terminal.shows("following")
    terminal.keys("C")
    terminal.shows("Nothing is undone")
    terminal.keys("Enter")
    wait(lambda: site.state is RunState.CANCELLED, lambda: terminal.screen)
    terminal.shows("CANCELLED")
    (site.files / "step-two.hold").unlink()
    terminal.keys("r")
    terminal.shows("Resume the run")
    terminal.keys("Tab", "Enter")
    wait(lambda: site.state is RunState.COMPLETED, lambda: terminal.screen)
    terminal.shows("3 of 3 tasks done")
    terminal.keys("q")
    terminal.shows("left with 0")


def test_a_hang_up_ends_the_screen_and_not_the_run(terminal: Terminal, site: Site) -> None:
    (site.files / "step-two.hold").touch()
    terminal.shows("ROLLED BACK")
    terminal.keys("r")
    terminal.shows("3 tasks are left")
    terminal.keys("Tab", "Enter")
    terminal.shows("step-two waits")
    screen = terminal.pid
    os.kill(screen, signal.SIGHUP)
    wait(lambda: not Path(f"/proc/{screen}").exists(), lambda: "the screen's process goes on after SIGHUP")
    terminal.close()
    assert site.state is RunState.RUNNING
    (site.files / "step-two.hold").unlink()
    wait(lambda: site.state is RunState.COMPLETED, lambda: f"the run is {site.state}")
