"""What was learned about a host a moment ago, for tasks of one run that need the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
FRESH_S = 10.0


class Recent:
    """Made once even when several tasks ask at the same time: the others wait for it."""

    def __init__(self, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s, self._clock = fresh_s, clock
        self._lock = threading.RLock()
        self._made: dict[str, tuple[float, Any]] = {}

    def get(self, name: str, make: Callable[[], T]) -> T:
        """The value of this name unless it is older than `fresh_s` seconds; then, or at first, `make()`'s."""
        with self._lock:
            at, value = self._made.get(name, (-1.0, None))
            now = self._clock()
            if name not in self._made or now - at > self._fresh_s:
                value = make()
                self._made[name] = (now, value)
            found: T = value
            return found

    def known(self, name: str) -> Any:
        """The value of this name as last made, however old; None when it was not made yet."""
        with self._lock:
            return self._made.get(name, (0.0, None))[1]
