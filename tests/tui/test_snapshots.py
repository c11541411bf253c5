"""Pictures of every view in three sizes and two themes. `pytest tests/tui --snapshot-update` draws them anew."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from orchestrator.tui.dialogs import ConfirmScreen, HelpScreen
from tests.tui.driving import make_app, opened, rest, screen_text, until
from tests.tui.fixtures import EARLIER_ID, Stage
from tests.tui.svg import LeanImages

SIZES = [(80, 24), (120, 40), (300, 80)]
THEMES = ["textual-dark", "textual-light"]
VIEWS = {
    "run": ("1", "verdict inconclusive so far"),
    "host": ("2", "182.4 tokens/s"),
    "bench": ("3", "B=64"),
    "roadmap": ("4", "SGLang DDTree roadmap: pro6000"),
    "history": ("5", EARLIER_ID),
    "todo": ("6", "Ask who owns the drop-in"),
}

ROADMAP = """\
# SGLang DDTree roadmap: pro6000

11 of 16 tasks are completed with evidence. No verdict yet.

| Fact | Value |
|---|---|
| Run | r20260102-030405-9f3c (deploy-ddtree) |
| Live service | DFLASH at http://10.0.0.20:30000 |

## Phases and tasks

### preflight

| Task | Priority | State | Time | Evidence or reason |
|---|---|---|---|---|
| Reach the host over SSH and prove its key | high | completed | 4.4 s | as expected |
| Check that the release fits on the disk | high | completed | 4.4 s | as expected |

1. A numbered step with `code` and **strong words**
2. Another one, long enough to be wrapped on a narrow screen, because documents have such lines as well

* a point, and a [link](docs/operators.md)
"""
REASONS = ["in progress", "claim: ada@workbench works on it, step applying"]


@pytest.fixture(autouse=True)
def written_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures show how words stand on the screen; which words other parts of the program choose is not their matter."""
    monkeypatch.setattr("orchestrator.report.roadmap.render", lambda view: ROADMAP)
    monkeypatch.setattr("orchestrator.tui.reasons.explained", lambda store, run_id, key: REASONS)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_views(demo: Stage, snapshot: SnapshotAssertion, size: tuple[int, int], theme: str) -> None:
    async with opened(demo, size=size, app=make_app(demo, theme=theme)) as (app, pilot):
        for name, (key, text) in VIEWS.items():
            await pilot.press(key)
            await until(pilot, lambda text=text: text in screen_text(app))
            await rest(pilot)
            assert app.export_screenshot() == snapshot(name=name, extension_class=LeanImages)


async def test_pages_and_questions(demo: Stage, snapshot: SnapshotAssertion) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        for key, name in (("w", "why"), ("e", "evidence")):
            await pilot.press(key)
            await until(pilot, lambda: app.run_view.detail)
            await rest(pilot)
            assert app.export_screenshot() == snapshot(name=name, extension_class=LeanImages)
        for key, name, screen in (("C", "cancel", ConfirmScreen), ("K", "steal", ConfirmScreen),
                                  ("question_mark", "help", HelpScreen)):  # fmt: skip
            await pilot.press(key)
            await until(pilot, lambda screen=screen: isinstance(app.screen, screen))
            await rest(pilot)
            assert app.export_screenshot() == snapshot(name=name, extension_class=LeanImages)
            await pilot.press("escape")
            await until(pilot, lambda screen=screen: not isinstance(app.screen, screen))


@pytest.mark.parametrize("theme", ["high-contrast", "no-colour"])
async def test_other_themes(demo: Stage, snapshot: SnapshotAssertion, theme: str) -> None:
    async with opened(demo, size=(80, 24), app=make_app(demo, theme=theme)) as (app, pilot):
        await until(pilot, lambda: "pairs (7 of 12)" in screen_text(app))
        await rest(pilot)
        assert app.export_screenshot() == snapshot(name="run", extension_class=LeanImages)
