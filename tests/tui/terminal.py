"""A real terminal for tests: tmux runs the command, takes the keys, and gives back the screen as text."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PASSED_ON = ("PYTHONPATH", "XDG_STATE_HOME", "PATH", "HOME", "TZ", "ORCHESTRATE_ENGINE_BASE")
PATIENCE_S = 120.0


class Terminal:
    """A tmux server of its own with one window, in which `command` runs; its exit code is shown when it ends."""

    def __init__(self, folder: Path, command: Sequence[str], size: tuple[int, int] = (100, 30)) -> None:
        self.socket = folder / "tmux"
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        line = shlex.join(
            ["env", "-u", "COLUMNS", "-u", "LINES", *(f"{name}={value}" for name, value in env.items()), *command]
        )
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(ROOT),
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

    def shows(self, text: str, patience_s: float = PATIENCE_S) -> None:
        wait(lambda: text in self.screen, lambda: f"{text!r} never came; on screen:\n{self.screen}", patience_s)

    @property
    def pid(self) -> int:
        """The process of the command."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        return int(subprocess.check_output(["pgrep", "-P", shell], text=True).split()[0])

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True, check=False)


def wait(condition: Callable[[], object], why: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
