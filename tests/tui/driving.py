"""Driving the application in tests: wait for what is to be seen, never for a time."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual._context import active_app
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input

from orchestrator.tui.app import OrchestrateApp
from orchestrator.tui.prefs import Prefs
from tests.tui.fixtures import RUN_ID, Stage

PATIENCE_S = float(
    os.environ.get("TUI_TEST_PATIENCE_S", "120")
)  # a busy machine; nothing waits so long that is not broken


def make_app(
    stage: Stage, *, theme: str = "textual-dark", run_id: str | None = RUN_ID, view: str = ""
) -> OrchestrateApp:
    return OrchestrateApp(stage.url, run_id, stage.hosts_file, Prefs(theme=theme), view=view, clock=stage.clock)


async def settled_messages(*_: float) -> None:
    """Until the application and its widgets have no message left: what a key did is done."""
    app, quiet = active_app.get(), 0
    while quiet < 3:
        await asyncio.sleep(0.001)
        pumps = (app, *app.screen.walk_children(with_self=True)) if app._screen_stack else (app,)
        quiet = 0 if any(pump.message_queue_size for pump in pumps) else quiet + 1


async def until(pilot: Pilot[int], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true; on screen:\n{screen_text(pilot.app)}")  # type: ignore[arg-type]
        await pilot.pause(0.01)
    await pilot.pause()


async def rest(pilot: Pilot[int]) -> None:
    """Until the store has answered everything that was asked and two looks at the screen show the same."""
    app = pilot.app
    assert isinstance(app, OrchestrateApp)
    before: list[Strip] = []
    for _ in range(200):
        for field in app.screen.query(Input):
            field.cursor_blink = False
        await until(pilot, lambda: not app.run_view.moving and app.head.fits)
        answered = threading.Event()
        app.feed._ask("test", lambda store, event=answered: event.set())  # answered after all that was asked before
        await until(pilot, answered.is_set)
        await pilot.wait_for_scheduled_animations()
        shown = app.screen._compositor.render_strips(app.size)
        silent = app.banner.has_class("-shown")  # a machine that stalled for seconds: the next tick takes it away
        if shown == before and not app.run_view.moving and not silent:
            return
        before = shown
    raise AssertionError(f"never came to rest; on screen:\n{screen_text(app)}")


@asynccontextmanager
async def opened(
    stage: Stage, *, size: tuple[int, int] = (120, 40), app: OrchestrateApp | None = None
) -> AsyncIterator[tuple[OrchestrateApp, Pilot[int]]]:
    """The application with the run on screen, its log read and its benchmark computed."""
    app = app or make_app(stage)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: settled(app))
        yield app, pilot


def settled(app: OrchestrateApp) -> bool:
    return bool(app.reading.run and app.run_view.log_view.lines and app.bench.rows)


def screen_text(app: OrchestrateApp) -> str:
    """What is on screen, as text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips(app.size)
    return "\n".join(strip.text.rstrip()[:width] for strip in lines[:height])


def toasts(app: OrchestrateApp) -> str:
    return " | ".join(str(note.message) for note in app._notifications)
