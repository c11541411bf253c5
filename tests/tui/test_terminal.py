"""Under a real terminal: tmux sends the keys and reads the screen; the run is one of the real command line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.store.records import RunState
from tests.tui.demosite import ROOT, install_demo_graph
from tests.tui.test_operating import Site

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
PATIENCE_S = 120.0


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.socket = folder / "tmux"
        self.command = [sys.executable, "-m", "orchestrator", "tui", "--hosts", str(site.folder / "hosts.yaml")]
        names = ("PYTHONPATH", "XDG_STATE_HOME", "PATH", "HOME", "TZ")
        env = {name: os.environ[name] for name in names if name in os.environ} | {
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        line = shlex.join(
            ["env", "-u", "COLUMNS", "-u", "LINES", *(f"{name}={value}" for name, value in env.items()), *self.command]
        )
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-c", str(ROOT),
                  f"{line}; echo left with $?; exec cat")  # fmt: skip

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", str(self.socket), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def shows(self, text: str) -> None:
        wait(lambda: text in self.screen, lambda: f"{text!r} never came; on screen:\n{self.screen}")

    @property
    def pid(self) -> int:
        """The TUI's process."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        return int(subprocess.check_output(["pgrep", "-P", shell], text=True).split()[0])

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True, check=False)


def wait(condition: Callable[[], object], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


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
    made = Terminal(tmp_path, site)
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
