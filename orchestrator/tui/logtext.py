"""An event as lines of the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from orchestrator.store.records import Event
from orchestrator.tui.words import MAX_LINE, Tone, amount, clock_time, one_line

_TONES = {
    "log": Tone.PLAIN,
    "progress": Tone.DIM,
    "metric": Tone.DIM,
    "artifact": Tone.DIM,
    "fact": Tone.DIM,
    "task.completed": Tone.GOOD,
    "task.reused": Tone.GOOD,
    "task.failed": Tone.BAD,
    "task.unknown": Tone.WARN,
    "task.retry": Tone.WARN,
    "task.undo_failed": Tone.BAD,
    "rollback.verified": Tone.GOOD,
    "rollback.unverified": Tone.BAD,
    "rollback.started": Tone.WARN,
    "lease.stolen": Tone.WARN,
    "lock.stolen": Tone.WARN,
    "lock.taken_over": Tone.WARN,
}


@dataclass(frozen=True)
class LogLine:
    """One line: when, which task, what. `text` is harmless to a terminal."""

    seq: int
    at: float
    task_key: str | None
    text: str
    tone: Tone
    passing: bool = False  # how far a task is; the next such line takes its place

    @property
    def stamped(self) -> str:
        return f"{clock_time(self.at)}  {self.text}"


def log_lines(event: Event) -> list[LogLine]:
    """The lines of an event; never raises, whatever another program put into the store."""
    data = event.data if isinstance(event.data, Mapping) else {"data": event.data}
    text = _text(event.kind, data)
    tone = _TONES.get(event.kind, Tone.STRONG if event.kind.startswith(("run.", "task.")) else Tone.PLAIN)
    return [
        LogLine(event.seq, event.at, event.task_key, one_line(part), tone, event.kind == "progress")
        for part in (text.replace("\r\n", "\n").replace("\r", "\n").split("\n") or [""])
    ]


def without_passed(lines: Iterable[LogLine]) -> list[LogLine]:
    """Of lines about how far a task is that follow each other, only the last."""
    kept: list[LogLine] = []
    for line in lines:
        if kept and replaces(line, kept[-1]):
            kept.pop()
        kept.append(line)
    return kept


def replaces(line: LogLine, before: LogLine) -> bool:
    return line.passing and before.passing and line.task_key == before.task_key


def _text(kind: str, data: Mapping[str, Any]) -> str:
    if kind == "log":
        return str(data.get("line", ""))
    if kind == "progress":
        done, total = data.get("done"), data.get("total")
        share = f" ({amount(done)} of {amount(total)})" if _number(done) and _number(total) else ""
        return f"… {data.get('text', '')}{share}"
    if kind == "metric":
        labels = data.get("labels")
        named = "".join(f" {name}={value}" for name, value in labels.items()) if isinstance(labels, Mapping) else ""
        return f"metric {data.get('name', '?')}{named} = {data.get('value', '?')}"
    if kind == "artifact":
        sha256 = str(data.get("sha256", ""))[:12]
        return f"kept {data.get('name', '?')} ({data.get('size', '?')} bytes, sha256 {sha256})"
    if kind == "fact":
        return f"recorded {data.get('kind', '?')} {data.get('key', '')}"
    return _state_text(kind, data)


def _state_text(kind: str, data: Mapping[str, Any]) -> str:
    """`completed: checked … – output`; the parts that say most first, in the words of the event."""
    name = kind.removeprefix("task.").replace(".", " ").replace("_", " ")
    parts = [str(data[field]) for field in ("reason", "why", "checked", "output", "error") if _says(data.get(field))]
    if kind == "task.claimed":
        parts = [f"attempt {data.get('attempt', '?')}"]
    trace = data.get("traceback")
    text = f"■ {name}" + (f": {' – '.join(parts)}" if parts else "")
    return text + (f"\n{trace.rstrip()}" if isinstance(trace, str) and trace.strip() else "")


def _says(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= MAX_LINE * 4


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
