"""Step times and walks of a CUDA worker, read without making the host wait for the device."""

from __future__ import annotations

from collections import deque

import torch

from .width_policy import Step
from .widths import Width


class EventClock:
    """Seconds between the starts of consecutive decode steps on the device, known a step or two later."""

    def __init__(self) -> None:
        self._running: tuple[Step, torch.cuda.Event] | None = None
        self._waiting: deque[tuple[Step, torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=32)

    def begin(self, step: Step) -> list[tuple[Step, float]]:
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        if self._running is not None:
            self._waiting.append((*self._running, now))
        self._running = (step, now)
        found = []
        while self._waiting and self._waiting[0][2].query():
            done, first, last = self._waiting.popleft()
            found.append((done, first.elapsed_time(last) / 1e3))
        return found

    def pause(self) -> None:
        self._running = None


class WalkReader:
    """Brings rows of ``entry_order`` to the host; a copy that would have to wait for an older one is left out."""

    def __init__(self, max_bs: int, columns: int, copies: int = 4) -> None:
        self._free = [torch.empty((max_bs, columns), dtype=torch.int64, pin_memory=True) for _ in range(copies)]
        self._waiting: deque[tuple[Width, torch.Tensor, int, torch.cuda.Event]] = deque()

    def send(self, width: Width, rows: torch.Tensor) -> None:
        """Start copying rows [bs, columns] of a step at ``width``."""
        if not self._free:
            return
        host = self._free.pop()
        host[: rows.shape[0]].copy_(rows, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        self._waiting.append((width, host, rows.shape[0], done))

    def ready(self) -> list[tuple[Width, list[list[int]]]]:
        """The rows that have arrived."""
        found = []
        while self._waiting and self._waiting[0][3].query():
            width, host, bs, _ = self._waiting.popleft()
            found.append((width, host[:bs].tolist()))
            self._free.append(host)
        return found
