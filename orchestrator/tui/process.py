"""Starts commands of this program as processes of their own, which outlive the screen that started them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.tui.prefs import default_path

KEPT_FILES = 40


@dataclass(frozen=True)
class Ended:
    """How a command ended. `document` is what it printed with --json, {} when that was nothing readable."""

    command: tuple[str, ...]
    exit_code: int
    document: Mapping[str, Any] = field(default_factory=dict)
    log: Path | None = None

    @property
    def sentence(self) -> str:
        """Its error, or that there is none."""
        error = self.document.get("error")
        if error:
            return str(error)
        return "done" if self.exit_code in (0, 9) else f"it ended with exit code {self.exit_code}; see {self.log}"


@dataclass(frozen=True)
class Program:
    """This program with the options that lead to the same inventory and store."""

    hosts_file: Path
    store_url: str
    folder: Path = field(default_factory=lambda: default_path().parent / "commands")

    def shown(self, command: Sequence[str]) -> str:
        """The command line as a person would type it."""
        return shlex.join(["orchestrate", *command])

    def arguments(self, command: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *command, "--json", "--hosts", str(self.hosts_file)]

    def start(self, command: Sequence[str], ended: Callable[[Ended], None]) -> int:
        """Starts the command detached from this terminal; `ended` is called from a thread. Returns the process id."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tidy()
        stem = self.folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        output, log = stem.with_suffix(".json"), stem.with_suffix(".log")
        with output.open("wb") as out, log.open("wb") as err:
            process = subprocess.Popen(
                self.arguments(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "ORCHESTRATE_STATE": self.store_url},  # not an argument: it may hold a password
            )
        threading.Thread(
            target=_wait, args=(process, tuple(command), output, log, ended), name="command", daemon=True
        ).start()
        return process.pid

    def _tidy(self) -> None:
        """Keeps the newest files of earlier commands."""
        for old in sorted(self.folder.iterdir())[: -KEPT_FILES or None]:
            with contextlib.suppress(OSError):
                old.unlink()


def _wait(
    process: subprocess.Popen[bytes], command: tuple[str, ...], output: Path, log: Path, ended: Callable[[Ended], None]
) -> None:
    code = process.wait()
    try:
        document = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        document = {}
    ended(Ended(command, code, document if isinstance(document, dict) else {}, log))
