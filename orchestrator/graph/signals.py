"""Ctrl-C, SIGTERM and a terminal that closes ask a run to stop after the current effects; a second one leaves at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.graph.session import StopSignal


@contextmanager
def stop_on_signals(stop: StopSignal) -> Iterator[None]:
    """Only the main thread may set handlers; elsewhere (a TUI worker, a test) the caller requests the stop itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and stop.is_set():
            return  # shell and kernel both send it
        if stop.is_set():
            raise KeyboardInterrupt  # whatever was in progress is probed by the next resume
        stop.request("interrupted", f"interrupted by {signal.Signals(number).name}")

    asked = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup keeps it ignored
        asked.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
