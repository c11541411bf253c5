"""Requests through a router for as long as a block lasts, in a process of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def wait_until(true: Callable[[], bool], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


@contextlib.contextmanager
def load(url: str, report: Path, streams: int, at_least: int) -> Iterator[dict[str, Any]]:
    """Requests during the block, and after it until `at_least` were sent; the yielded dict is filled at the end."""
    count = report.with_suffix(".count")
    count.write_text("0")
    command = [sys.executable, "-m", "tests.rolling.load", url, str(streams), str(report)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def sent() -> int:
        return int(count.read_text() or 0)

    found: dict[str, Any] = {}
    try:
        wait_until(lambda: sent() > streams, 60)
        started = time.monotonic()
        yield found
        found |= {"during": sent(), "seconds": round(time.monotonic() - started, 1)}
        wait_until(lambda: sent() >= at_least, 1200)
    finally:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait(timeout=700)
    found |= json.loads(report.read_text())
    print(
        f"\n{report.stem}: {found['sent']} requests, {found['tokens']} tokens, {len(found['failed'])} failed; "
        f"{found['during']} of them in the {found['seconds']} s of the change; longest {found['longest_s']:.1f} s"
    )
