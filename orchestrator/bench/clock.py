"""Time as something that can be handed in, so that every figure is exact in tests."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary start, and waiting for them."""

    def now(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class FakeClock:
    """Time that moves only when `advance` (or `run_until_idle`) is called; sleepers wake in order of their time."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(0.0, seconds), next(self._order), waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move time when nothing is asleep (synchronous code)."""
        self._now += seconds

    async def run_until_idle(self) -> None:
        """Wake sleepers one after the other, each at its exact time, until none is left."""
        while True:
            for _ in range(20):  # let every runnable task reach its next await
                await asyncio.sleep(0)
            if not self._sleepers:
                return
            due, _, waiter = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not waiter.done():
                waiter.set_result(None)
