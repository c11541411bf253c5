"""Commands as processes of their own: closing a terminal, a screen or an agent's connection leaves them alone."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.errors import ExitCode, OrchestrateError, UsageError
from orchestrator.store.process import ProcessName
from orchestrator.store.records import RunRecord
from orchestrator.store.store import Store

POLL_S = 0.1


class RunError(OrchestrateError):
    """What a run ended with, or did not begin for: its sentence and its exit code."""

    def __init__(self, sentence: str, exit_code: ExitCode) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass(frozen=True)
class DetachedCommand:
    """A command that another process of this program carries out; its document and progress lie in `.run/`."""

    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: Path
    log: Path

    @property
    def exit_code(self) -> int | None:
        """None while the process lives."""
        return self.process.poll()

    def interrupt(self) -> None:
        """As Ctrl-C would: it stops after the current effect."""
        self.process.send_signal(signal.SIGINT)

    def document(self) -> Mapping[str, Any]:
        """What the process printed with --json; {} while it lives, and when it was killed."""
        try:
            found = json.loads(self.output.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class DetachedRun(DetachedCommand):
    """`orchestrate run` in a process of its own."""

    run_id: str

    def refusal(self) -> RunError:
        """The error of a run whose process ended before it began."""
        document = self.document()
        code = document.get("exit_code")
        sentence = document.get("error") or f"The process of run {self.run_id} ended; {self.log} says more."
        return RunError(str(sentence), ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED_UNCHANGED)


def start_command(hosts_file: Path, store_url: str, arguments: Sequence[str], name: str) -> DetachedCommand:
    """Start `orchestrate ARGUMENTS --json`; its files in `.run/` are called `name`. OSError when that is not possible.

    While another process of that name lives, which this one may find out only then, a number is added. The caller has
    asked for consent. The store's URL travels in the environment: it may hold a password.
    """
    folder = hosts_file.resolve().parent / ".run"
    folder.mkdir(parents=True, exist_ok=True)
    with own_file(folder, name) as out, Path(out.name).with_suffix(".log").open("ab") as progress:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments, "--json", "--hosts", str(hosts_file.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=progress,
            start_new_session=True,
            env={**os.environ, "ORCHESTRATE_STATE": store_url},
        )
    return DetachedCommand(tuple(arguments), process, Path(out.name), Path(progress.name))


def own_file(folder: Path, name: str) -> BinaryIO:
    """An empty file `name.json`, or `name-2.json` and so on, that is locked for as long as any process holds it open."""
    for number in itertools.count(1):
        file = (folder / f"{name}{'' if number == 1 else f'-{number}'}.json").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        file.truncate(0)
        return file
    raise AssertionError("unreachable: the numbers never end")


def is_held(output: Path) -> bool:
    """Whether the process that writes this document still lives."""
    with contextlib.suppress(FileNotFoundError), output.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def start_run(hosts_file: Path, store_url: str, run_id: str, arguments: Sequence[str], *, new: bool) -> DetachedRun:
    """Start `orchestrate run ARGUMENTS --yes` under a chosen id (`new`), or to go on with that run."""
    command = ["run", *arguments, "--run-id" if new else "--resume", run_id, "--yes"]
    started = start_command(hosts_file, store_url, command, run_id)
    return DetachedRun(started.arguments, started.process, started.output, started.log, run_id)


def wait_begun(store: Store, run: DetachedRun, timeout_s: float = math.inf) -> RunRecord | None:
    """The run as soon as the process works on it; None when the process ended before, or the time is up."""
    until = time.monotonic() + timeout_s
    while True:
        over = run.exit_code is not None or time.monotonic() > until
        found = _taken(store, run)
        if found is not None or over:
            return found
        time.sleep(POLL_S)


def _taken(store: Store, run: DetachedRun) -> RunRecord | None:
    try:
        record = store.runs.get(run.run_id)
    except UsageError:
        return None
    worker = ProcessName.from_text(record.process)
    return record if worker is not None and worker.pid == run.process.pid else None
