"""Starts what the screen was told to do as commands of this program, which outlive the screen."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.detached import DetachedCommand, is_held, start_command
from orchestrator.documents import SUCCESS

KEPT_COMMANDS = 20


@dataclass(frozen=True)
class Program:
    """This program with the options that lead to the same inventory and store."""

    hosts_file: Path
    store_url: str

    def shown(self, command: Sequence[str]) -> str:
        """The command line as a person would type it."""
        return shlex.join(["orchestrate", *command])

    def start(self, command: Sequence[str], ended: Callable[[DetachedCommand], None]) -> int:
        """Starts the command; `ended` is called from a thread when it is over. Returns the process id."""
        name = f"tui-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        started = start_command(self.hosts_file, self.store_url, command, name)
        self._tidy(started.output.parent)

        def wait() -> None:
            started.process.wait()
            ended(started)

        threading.Thread(target=wait, name="command", daemon=True).start()
        return started.process.pid

    def _tidy(self, folder: Path) -> None:
        """Keeps document and progress of the newest commands, and of every one that still runs."""
        for old in sorted(folder.glob("tui-*.json"))[:-KEPT_COMMANDS]:
            with contextlib.suppress(OSError):
                if not is_held(old):
                    old.with_suffix(".log").unlink(missing_ok=True)
                    old.unlink()


def succeeded(command: DetachedCommand) -> bool:
    return command.exit_code in SUCCESS


def how_it_ended(command: DetachedCommand) -> str:
    """Its error as one sentence, or that there is none."""
    error = command.document().get("error")
    if error:
        return str(error)
    return "done" if succeeded(command) else f"it ended with exit code {command.exit_code}; see {command.log}"
