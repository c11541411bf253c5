"""Actions from the screen to their end: real processes of the real command line on a graph that writes files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from orchestrator.graph.model import State
from orchestrator.store.records import RunState
from orchestrator.store.store import Store, open_store
from orchestrator.tui.app import OrchestrateApp
from orchestrator.tui.dialogs import ConfirmScreen, HelpScreen
from orchestrator.tui.prefs import Prefs
from tests.tui.demosite import install_demo_graph
from tests.tui.driving import opened, screen_text, toasts, until
from tests.tui.fixtures import HOSTS, Stage


class Site:
    """A folder with an inventory, a store, and files that the demo graph writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self.files.mkdir()
        (folder / "hosts.yaml").write_text(HOSTS.replace("pro6000: {", "zeta: {"))
        self.url = f"sqlite:///{folder / 'state.db'}"
        self.store: Store = open_store(self.url)

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", "run", "demo", "--host", "local", "--yes",
                   "--set", f"folder={self.files}", "--hosts", str(self.folder / "hosts.yaml"), *more]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def app(self) -> OrchestrateApp:
        return OrchestrateApp(self.url, None, self.folder / "hosts.yaml", Prefs())

    @property
    def state(self) -> RunState:
        run = self.store.runs.latest()
        assert run is not None
        return run.state

    def states(self) -> list[State]:
        run = self.store.runs.latest()
        assert run is not None
        return [task.state for task in self.store.tasks.list(run.id)]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    install_demo_graph(tmp_path, monkeypatch)
    made = Site(tmp_path)
    yield made
    for hold in made.files.glob("*.hold"):  # lets a process that a failed test left behind come to its end
        hold.unlink()
    made.store.close()


@asynccontextmanager
async def rolled_back(
    site: Site, failing: str = "step-two", *, mended: bool = True
) -> AsyncIterator[tuple[OrchestrateApp, Pilot[int]]]:
    """The screen with a run that failed and was rolled back; what made it fail is gone by then, if `mended`."""
    (site.files / f"{failing}.fail").touch()
    assert site.run().returncode == 4
    assert site.state is RunState.ROLLED_BACK
    if mended:
        (site.files / f"{failing}.fail").unlink()
    app = site.app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "ROLLED BACK" in screen_text(app))
        yield app, pilot


async def asked(app: OrchestrateApp, pilot: Pilot[int], key: str) -> str:
    """The question that a key opens, as text."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    return screen_text(app)


async def test_a_failed_run_is_resumed_from_the_screen(site: Site) -> None:
    async with rolled_back(site) as (app, pilot):
        text = await asked(app, pilot, "r")
        assert "3 tasks are left: step-one, step-two, step-three." in text
        assert "orchestrate run demo --host local --resume r" in text.replace("\n", "")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: site.state is RunState.COMPLETED)
        await until(pilot, lambda: "COMPLETED" in screen_text(app))
        await until(pilot, lambda: "orchestrate run demo: done" in toasts(app))
    assert sorted(path.name for path in site.files.iterdir()) == ["step-one", "step-three", "step-two"]


async def test_start_watch_cancel_and_resume_and_leaving_stops_nothing(site: Site) -> None:
    """The whole life of a run, with the screen closed in the middle of it."""
    (site.files / "step-one.fail").touch()
    site.run()  # the settings of a first run tell the next ones where to write
    (site.files / "step-one.fail").unlink()
    (site.files / "step-two.hold").touch()
    app = site.app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.reading.run is not None)
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("tab", "enter")
        await until(pilot, lambda: "step-two waits, round 1" in screen_text(app))
    assert site.state is RunState.RUNNING
    app = site.app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "step-two waits" in screen_text(app))
        await pilot.press("C")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "Nothing is undone" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: site.state is RunState.CANCELLED)
        await until(pilot, lambda: "CANCELLED" in screen_text(app))
        assert site.states() == [State.COMPLETED, State.PENDING, State.PENDING]
        (site.files / "step-two.hold").unlink()
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("tab", "enter")
        await until(pilot, lambda: site.state is RunState.COMPLETED)


async def test_a_failed_task_is_retried_alone_and_the_rest_can_go_on(site: Site) -> None:
    async with rolled_back(site) as (app, pilot):
        app.run_view.task_tree.select("step-two")
        assert "What it needs is done first: step-one." in await asked(app, pilot, "T")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: "orchestrate run demo: done" in toasts(app))
        assert (site.files / "step-two").exists()
        assert not (site.files / "step-three").exists()
        await until(pilot, lambda: "COMPLETED" in screen_text(app))
        await asked(app, pilot, "r")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: (site.files / "step-three").exists() and site.state is RunState.COMPLETED)


async def test_a_task_is_left_out_and_the_run_goes_on(site: Site) -> None:
    async with rolled_back(site, mended=False) as (app, pilot):
        app.run_view.task_tree.select("step-two")
        assert "These go on without its result: step-three." in await asked(app, pilot, "S")
        await pilot.press("tab", "enter")
        await until(pilot, lambda: site.state is RunState.COMPLETED)
        await until(pilot, lambda: "3 of 3 tasks done" in screen_text(app))
    assert site.states() == [State.COMPLETED, State.SKIPPED, State.COMPLETED]


async def test_a_new_run_with_settings_is_started_and_shown(site: Site) -> None:
    async with rolled_back(site, "step-one") as (app, pilot):
        first = app.reading.run
        await asked(app, pilot, "R")
        await pilot.press(*f"folder={site.files}")
        await until(pilot, lambda: "--set" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.reading.run is not None and app.reading.run.id != first.id)
        await until(pilot, lambda: "COMPLETED" in screen_text(app))
    assert (site.files / "step-three").exists()


async def test_the_lock_of_a_dead_run_is_stolen_with_a_reason(site: Site) -> None:
    (site.files / "step-one.fail").touch()
    site.run()
    site.store.leases.acquire("local", "bo@elsewhere", None, ttl_s=3600)
    app = site.app()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "lock bo@elsewhere" in screen_text(app))
        await pilot.press("K")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press(*"its machine burned", "tab", *"local", "enter")
        await until(pilot, lambda: "lock free" in screen_text(app))
        await until(pilot, lambda: "orchestrate lock steal: done" in toasts(app))
    stolen = site.store.events.latest(1, None, None, ("lease.stolen",))
    assert "its machine burned" in str(stolen[0].data)


async def test_leaving_the_question_does_nothing(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("C")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
    assert demo.store.runs.get("r20260102-030405-9f3c").cancel_reason is None


async def test_questions_fit_a_small_screen_with_command_and_buttons(demo: Stage) -> None:
    demo.script.fail("bench-budgets", "no")
    demo.script.end(RunState.FAILED, 1, "no")
    async with opened(demo, size=(80, 24)) as (app, pilot):
        for key in "RrTSBK":
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and "runs: orch" in screen_text(app))
            assert "Leave it" in screen_text(app)
            assert app.screen.query_one("#do").region.bottom < app.size.height
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))


async def test_what_is_not_possible_says_why(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: "Not now: run r20260102-030405-9f3c is being worked on." in toasts(app))
        assert not isinstance(app.screen, ConfirmScreen)


async def test_rolling_back_is_disabled_until_the_host_is_typed(demo: Stage) -> None:
    demo.script.fail("bench-budgets", "no")
    demo.script.end(RunState.FAILED, 1, "no")
    async with opened(demo) as (app, pilot):
        await pilot.press("B")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        button = app.screen.query_one("#do")
        assert button.disabled
        for key in ("tab", *"pro600", "enter"):  # all at once, as after a stall: each finds the field that it is for
            app._driver.send_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: app.screen.answers["confirm"] == "pro600")
        assert app.screen.answers["to"] == ""
        assert "type pro6000 to confirm" in screen_text(app)
        assert button.disabled
        await pilot.press("0")
        await until(pilot, lambda: not button.disabled)


async def test_a_command_that_fails_shows_its_sentence(demo: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    async with opened(demo) as (app, pilot):
        app.operator.program.start(("cancel", "r19990101-000000-0000"), app.operator._tell)
        await until(pilot, lambda: "there is no run r19990101-000000-0000" in toasts(app))


async def test_the_plan_page_asks_the_host(site: Site) -> None:
    (site.files / "step-one.fail").touch()
    site.run()
    app = site.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.run_view.selected_task is not None)
        await pilot.press("p")
        await until(pilot, lambda: "+step-one" in screen_text(app))
        assert "is written" in screen_text(app)


async def test_the_palette_offers_what_is_possible(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert "Cancel the run (C)" in titles
        assert "Resume the run (r)" not in titles
        assert "Theme: high-contrast" in titles
        await pilot.press("colon")
        await pilot.press(*"to-do")
        await until(pilot, lambda: "View: To-do (6)" in screen_text(app))
        await pilot.press("enter", "enter")
        await until(pilot, lambda: app.tabs.active == "todo")


async def test_help_fits_the_place(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        text = screen_text(app)
        assert "Tree of tasks" in text
        assert "Fold phase" in text
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, HelpScreen))
        await pilot.press("6", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen) and "To-do view" in screen_text(app))
        assert "Fold phase" not in screen_text(app)
