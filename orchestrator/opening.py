"""Opens hosts for a run, and lets everybody who watches it see what the first use of a host does, which takes minutes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator.graph.session import Listener
from orchestrator.hosts.session import HostSession
from orchestrator.store.records import Event

if TYPE_CHECKING:
    from orchestrator.operations import Workplace

TELL_EVERY_S = 1.0


class Opening:
    """`session` is what the run opens its hosts with, `heard` its listener."""

    def __init__(self, place: Workplace, listener: Listener | None) -> None:
        self._place = place
        self._listener = listener
        self._waiting: tuple[str, str | None] | None = None  # run and task that was begun last: it wants the host
        self._told_at = -TELL_EVERY_S

    def heard(self, event: Event) -> None:
        if event.kind == "task.claimed":
            self._waiting = (event.run_id or "", event.task_key)
        if self._listener is not None:
            self._listener(event)

    def session(self, name: str) -> HostSession:
        return self._place.session(name, self._tell)

    def _tell(self, text: str, done: float | None, total: float | None) -> None:
        """To the command's own output as ever, and into the store as progress of the task that waits."""
        self._place.progress(text, done, total)
        now = time.monotonic()
        if self._waiting is None or now - self._told_at < TELL_EVERY_S:
            return
        self._told_at = now
        run_id, key = self._waiting
        said = f"first use of the host: {self._place.masker.mask(text)}"
        self._place.store.events.append(run_id, key, "progress", {"text": said, "done": done, "total": total})
