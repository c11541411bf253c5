"""Calls a method of a task so that it cannot hang the run for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from orchestrator.graph.context import Context, TimedOut


def call_bounded(context: Context, call: Callable[[Context], Any], grace_s: float) -> Any:
    """What `call(context)` returns or raises; TimedOut when it did not stop `grace_s` after the task's own time.

    It runs in a thread of its own. One that hangs is left behind, and its context refuses whatever it still tries.
    """
    ended: list[Any] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            ended.append(call(context))
        except BaseException as error:  # handed to the caller
            raised.append(error)

    thread = threading.Thread(target=work, name=f"bounded {context.key}", daemon=True)
    thread.start()
    thread.join(context.timeout_s + grace_s)
    if raised:
        raise raised[0]
    if ended:
        return ended[0]
    context.abandon()
    context.drop_host()
    raise TimedOut(f"task {context.key} took longer than {context.timeout_s:g} s and did not stop when told to")
