"""The adaptive policy: the controller's decisions from a worker's step times and walks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .config import DDTreeConfig
from .controller import Controller
from .widths import AUTO, Width, WidthControl

IDLE_STRIDE = 8  # while another policy is in force, the controller looks at fewer walks
Agree = Callable[[int], int]
Step = tuple[int, int]  # index of the width, batch size


def own_choice(index: int) -> int:
    """For a worker without others to agree with."""
    return index


class Clock(Protocol):
    """Times decode steps from the start of one to the start of the next, so that nothing in between is left out."""

    def begin(self, step: Step) -> list[tuple[Step, float]]:
        """A step starts; returns the seconds of earlier steps that are known by now."""
        ...

    def pause(self) -> None:
        """Something other than a decode step follows: the running step can't be timed."""
        ...


class HostClock:
    """For devices that have finished a step's work when the next one starts."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._running: tuple[Step, float] | None = None

    def begin(self, step: Step) -> list[tuple[Step, float]]:
        now, running = self._now(), self._running
        self._running = (step, now)
        return [] if running is None else [(running[0], now - running[1])]

    def pause(self) -> None:
        self._running = None


class Adaptive:
    """Asks the controller every step.  agree: makes all ranks follow the first one's choice, since each times for itself."""

    name = AUTO

    def __init__(self, widths: Sequence[Width], levels: int, agree: Agree) -> None:
        self.widths = tuple(widths)
        self.controller = Controller([width.nodes for width in widths], levels)
        self.agree = agree

    def choose(self, batch_size: int) -> Width:
        return self.widths[self.agree(self.controller.choose(batch_size))]


class TimedControl(WidthControl):
    """Width control that measures every step, whichever policy is in force, so that ``auto`` starts informed.

    walks_every: how often a worker should report walks under ``auto`` (reading them costs a GPU some launches).
    """

    def __init__(self, config: DDTreeConfig, clock: Clock, walks_every: int, agree: Agree) -> None:
        widths = config.widths
        self.adaptive = Adaptive(widths, config.max_depth, agree) if widths[0].is_chain and len(widths) > 1 else None
        start = config.start or self.adaptive
        assert start is not None  # the configuration refuses auto without a chain
        super().__init__(widths, start, self.adaptive)
        self.clock, self.walks_every = clock, walks_every
        self._steps = 0

    def choose(self, batch_size: int) -> Width:
        width = super().choose(batch_size)
        self._steps += 1
        if self.adaptive is not None:
            for (index, size), seconds in self.clock.begin((self.index(width), batch_size)):
                self.adaptive.controller.note_time(index, size, seconds)
        return width

    def pause(self) -> None:
        """Something other than a decode step runs now."""
        self.clock.pause()

    @property
    def wants_walks(self) -> bool:
        """Whether the running step's walks should be noted."""
        return self.adaptive is not None and self._steps % self._stride() == 0

    def _stride(self) -> int:
        return self.walks_every * (1 if self.policy is self.adaptive else IDLE_STRIDE)

    def note_walks(self, width: Width, walks: Sequence[Sequence[int]]) -> None:
        """walks: rows of ``entry_order`` of one step at ``width``."""
        if self.adaptive is not None and walks:
            self.adaptive.controller.note_walks(self.index(width), walks, self._stride())

    def state(self) -> dict[str, object]:
        estimates = self.adaptive.controller.state() if self.adaptive is not None else {}
        return {**super().state(), **({"estimates": estimates} if estimates else {})}


def control_for(
    config: DDTreeConfig, clock: Clock | None = None, walks_every: int = 1, agree: Agree = own_choice
) -> TimedControl:
    """The width control of a worker."""
    return TimedControl(config, clock or HostClock(), walks_every, agree)
