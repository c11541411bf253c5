"""Pictures of every view in three sizes and two themes. `pytest tests/tui --snapshot-update` draws them anew."""

from __future__ import annotations

import pytest
from pytest_textual_snapshot import SVGImageExtension
from syrupy.assertion import SnapshotAssertion

from orchestrator.tui.app import OrchestrateApp
from orchestrator.tui.dialogs import ConfirmScreen, HelpScreen
from tests.tui.driving import make_app, opened, screen_text, until
from tests.tui.fixtures import EARLIER_ID, Stage

SIZES = [(80, 24), (120, 40), (300, 80)]
THEMES = ["textual-dark", "textual-light"]
VIEWS = {
    "run": ("1", "pairs (7 of 12)"),
    "host": ("2", "182.4 tokens/s"),
    "bench": ("3", "B=64"),
    "roadmap": ("4", "SGLang DDTree roadmap: pro6000"),
    "history": ("5", EARLIER_ID),
    "todo": ("6", "Ask who owns the drop-in"),
}


def at_rest(app: OrchestrateApp) -> bool:
    """The log stands at its end, the tree shows its cursor, and the estimate has come."""
    log, tree = app.run_view.log_view, app.run_view.task_tree
    in_view = tree.scroll_offset.y <= tree.cursor < tree.scroll_offset.y + tree.size.height
    return bool(app.durations.runs and log.scroll_offset.y >= log.max_scroll_y and in_view)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_views(demo: Stage, snapshot: SnapshotAssertion, size: tuple[int, int], theme: str) -> None:
    async with opened(demo, size=size, app=make_app(demo, theme=theme)) as (app, pilot):
        await until(pilot, lambda: at_rest(app))
        for name, (key, text) in VIEWS.items():
            await pilot.press(key)
            await until(pilot, lambda text=text: text in screen_text(app))
            await pilot.wait_for_scheduled_animations()
            assert app.export_screenshot() == snapshot(name=name, extension_class=SVGImageExtension)


async def test_pages_and_questions(demo: Stage, snapshot: SnapshotAssertion) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: at_rest(app))
        for key, name in (("w", "why"), ("e", "evidence")):
            await pilot.press(key)
            await until(pilot, lambda: app.run_view.detail)
            await pilot.wait_for_scheduled_animations()
            assert app.export_screenshot() == snapshot(name=name, extension_class=SVGImageExtension)
        for key, name, screen in (("C", "cancel", ConfirmScreen), ("K", "steal", ConfirmScreen),
                                  ("question_mark", "help", HelpScreen)):  # fmt: skip
            await pilot.press(key)
            await until(pilot, lambda screen=screen: isinstance(app.screen, screen))
            for field in app.screen.query("Input"):
                field.cursor_blink = False
            await pilot.wait_for_scheduled_animations()
            assert app.export_screenshot() == snapshot(name=name, extension_class=SVGImageExtension)
            await pilot.press("escape")
            await until(pilot, lambda screen=screen: not isinstance(app.screen, screen))


@pytest.mark.parametrize("theme", ["high-contrast", "no-colour"])
async def test_other_themes(demo: Stage, snapshot: SnapshotAssertion, theme: str) -> None:
    async with opened(demo, size=(80, 24), app=make_app(demo, theme=theme)) as (app, pilot):
        await until(pilot, lambda: at_rest(app))
        await until(pilot, lambda: "pairs (7 of 12)" in screen_text(app))
        assert app.export_screenshot() == snapshot(name="run", extension_class=SVGImageExtension)
