"""What a task may use while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from orchestrator.graph.model import Cancelled, TaskSpec
from orchestrator.graph.session import RunSession

PROGRESS_EVERY_S = 0.2
MAX_LINE = 20_000  # characters of one log line; more belongs into an artifact


class TimedOut(Cancelled):
    """The task's own time is up."""


class Context:
    """The TaskContext of one attempt. Once abandoned, every use raises Cancelled."""

    def __init__(self, session: RunSession, spec: TaskSpec, obey_stop: bool = True) -> None:
        self._session = session
        self._spec = spec
        self._obey_stop = obey_stop
        self._deadline = time.monotonic() + spec.timeout_s
        self._abandoned = False
        self._last_progress = 0.0
        self._host_used: Any = None
        self._changing = False
        self.earlier: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        return self._spec.key

    @property
    def timeout_s(self) -> float:
        return self._spec.timeout_s

    @property
    def run_id(self) -> str:
        return self._session.run_id

    @property
    def store(self) -> Any:
        return self._session.store

    @property
    def host(self) -> Any:
        self._check_abandoned()
        self._host_used = self._session.host(self.host_name)
        if self._changing:
            self._session.before_change(self.host_name)
        return self._host_used

    def begin_change(self) -> None:
        """From here on the host may be changed: its lock is taken now, or as soon as a session to it is opened."""
        self._changing = True
        if self._session.open_host(self.host_name) is not None:
            self._session.before_change(self.host_name)

    def drop_host(self) -> None:
        """Closes the session that this attempt used; the next use opens a fresh one."""
        if self._host_used is not None:
            self._session.drop_host(self.host_name, self._host_used)

    @property
    def host_name(self) -> str:
        return self._spec.host or self._session.default_host

    @property
    def settings(self) -> Mapping[str, str]:
        return self._session.settings

    def output(self, task_key: str) -> Mapping[str, Any]:
        return self._session.outputs.get(task_key, {})

    def log(self, line: str) -> None:
        self._check_abandoned()
        more = len(line) - MAX_LINE
        self._event("log", line=f"{line[:MAX_LINE]}… ({more} more characters left out)" if more > 0 else line)

    def metric(self, name: str, value: float, **labels: str) -> None:
        self._check_abandoned()
        name, data = self._session.masked(name), self._session.masked({"value": value, "labels": labels})
        with self._session.record() as event:
            event("metric", self._spec.key, name=name, **data)
            self._session.store.facts.add("metric", name, data, self.host_name, self._session.run_id, self._spec.key)

    def fact(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        self._check_abandoned()
        key, document = self._session.masked(key), self._session.masked(dict(data))
        with self._session.record() as event:
            event("fact", self._spec.key, kind=kind, key=key)
            self._session.store.facts.add(kind, key, document, self.host_name, self._session.run_id, self._spec.key)

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Shown live; of a quick sequence only some are kept, the last one (done == total) always."""
        self._check_abandoned()
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_EVERY_S or (done is not None and done == total):
            self._last_progress = now
            self._event("progress", text=text, done=done, total=total)

    def artifact(self, name: str, content: bytes | str) -> str:
        self._check_abandoned()
        name, data = self._session.masked(name), self._masked_bytes(content)
        with self._session.record() as event:
            kept = self._session.store.artifacts.add(self._session.run_id, self._spec.key, name, data)
            event("artifact", self._spec.key, name=name, sha256=kept.sha256, size=kept.size)
        return str(kept.path)

    def check_cancelled(self) -> None:
        self._check_abandoned()
        if self._obey_stop and self._session.stop.is_set():
            raise Cancelled(self._session.stop.reason)
        if time.monotonic() > self._deadline:
            raise TimedOut(f"task {self._spec.key} took longer than {self._spec.timeout_s:g} s")

    def abandon(self) -> None:
        """Called when the attempt did not stop in time: nothing that it still does may count."""
        self._abandoned = True

    def _check_abandoned(self) -> None:
        if self._abandoned:
            raise Cancelled(f"this attempt of task {self._spec.key} was given up")

    def _event(self, kind: str, **data: Any) -> None:
        with self._session.record() as event:
            event(kind, self._spec.key, **data)

    def _masked_bytes(self, content: bytes | str) -> bytes:
        """Bytes that are no text are masked too, and otherwise kept as they are."""
        if isinstance(content, str):
            return str(self._session.masked(content)).encode("utf-8", "backslashreplace")
        return str(self._session.masked(content.decode("utf-8", "surrogateescape"))).encode("utf-8", "surrogateescape")
