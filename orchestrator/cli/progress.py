"""The run as a person watches it on stderr: what runs now, for how long, what was proven, where the log is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from orchestrator.cli.output import plain
from orchestrator.store.records import Event

QUIET_S = 10.0  # without a terminal, progress of one task is repeated at most this often
MARKS = {"completed": "ok", "reused": "reused", "skipped": "skipped", "failed": "FAILED", "unknown": "unknown"}


class StatusLine:
    """The line that moves: the running tasks, their time and latest progress."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.text: dict[str, str] = {}

    def __rich__(self) -> Text:
        now = time.monotonic()
        parts = [f"{key} {now - at:.0f} s  {self.text.get(key, '')}".rstrip() for key, at in self.started.items()]
        return Text("  … " + " | ".join(parts) if parts else "", style="dim", overflow="ellipsis", no_wrap=True)


class RunProgress:
    """A listener for Runner.run: prints each change as a line, and on a terminal keeps a status line below."""

    def __init__(self, contents: Mapping[str, str], console: Console, verbose: bool = False) -> None:
        self._contents = contents
        self._console = console
        self._verbose = verbose
        self._numbers = {key: index for index, key in enumerate(contents, 1)}
        self._status = StatusLine()
        self._live = Live(self._status, console=console, refresh_per_second=4, transient=True)
        self._said: dict[str, float] = {}
        self._announced = ""

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        kind, key, data = event.kind, event.task_key or "", event.data
        if kind in ("run.started", "run.resumed"):
            self._say(f"run {event.run_id}: {len(self._contents)} tasks; log: orchestrate logs {event.run_id} -f")
        elif kind == "task.claimed":
            self._claimed(key)
        elif kind == "progress":
            self._progress(key, data)
        elif kind == "log":
            self._say(f"      {data.get('line', '')}", "dim")
        elif kind.startswith("task."):
            self._task(kind.removeprefix("task."), key, data)
        elif kind.startswith("rollback.") or kind == "run.outcome":
            words = data.get("reason") or data.get("output") or key
            self._say(f"  {kind}: {words}" if words else f"  {kind}", "yellow")

    def _claimed(self, key: str) -> None:
        self._status.started[key] = time.monotonic()
        self._status.text.pop(key, None)
        self._announce(key)

    def _announce(self, key: str) -> None:
        """The task's number and content; its lines follow."""
        self._announced = key
        number = f"{self._numbers.get(key, 0):>2}/{len(self._contents)}"
        self._say(f"{number}  {self._contents.get(key, key)}", "bold")

    def _progress(self, key: str, data: Mapping[str, Any]) -> None:
        text = str(data.get("text", ""))
        if data.get("total"):
            text += f" ({data.get('done') or 0:.0f}/{data['total']:.0f})"
        self._status.text[key] = plain(text).replace("\n", " ")
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said.get(key, 0.0) >= QUIET_S:
            self._said[key] = now
            self._say(f"      {key}: {text}")

    def _task(self, what: str, key: str, data: Mapping[str, Any]) -> None:
        if what not in MARKS and what not in ("pending", "rolled_back"):
            return
        started = self._status.started.pop(key, None)
        took = f"{time.monotonic() - started:6.1f} s" if started is not None else ""
        if key != self._announced:  # another task was announced meanwhile, or this one never started
            self._announce(key)
        told = str(data.get("output") if what == "completed" else data.get("reason", key))
        style = {"failed": "bold red", "unknown": "yellow", "completed": "green", "reused": "green"}.get(what, "yellow")
        self._say(f"      {MARKS.get(what, what)} {took}  {told}".rstrip(), style)

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(plain(text), style=style), soft_wrap=True)
