"""Where the store takes the time from: seconds since the epoch (UTC). Tests give their own."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
