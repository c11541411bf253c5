"""What goes wrong around the screen: it says so, goes on where it can, and never lets a byte through."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading

import pytest

from orchestrator.errors import UsageError
from orchestrator.store.process import ProcessName
from orchestrator.store.store import Store, open_store
from orchestrator.tui import app as app_module
from orchestrator.tui.app import OrchestrateApp
from orchestrator.tui.launch import open_tui
from orchestrator.tui.prefs import Prefs
from tests.tui.driving import make_app, opened, screen_text, until
from tests.tui.fixtures import RUN_ID, Clock, Script, Stage, new_store

NASTY = (
    "\x1b[2J\x1b]52;c;ZXZpbA==\x07 wiped?",
    "\x9b31m C1 \u202eright to left\u2066",
    "[red]markup[/red] [@click=app.quit]click[/] [",
    "x" * 20_000,
    "漢" * 300 + "👩‍👩‍👧‍👦é́",
    "\ud800 lone surrogate".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
    "tab\tand\rreturn\x00nul",
)


async def test_nasty_log_lines_are_shown_harmlessly(demo: Stage) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        demo.script.log("bench-budgets", *NASTY, "the end")
        for name in ("wrapped", "not wrapped"):
            await until(pilot, lambda: "the end" in screen_text(app))
            svg, text = app.export_screenshot(), screen_text(app)
            assert "\x1b" not in text + svg, name
            assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in text), name
            app.run_view.log_view.focus()
            await pilot.press("W")
        await pilot.press("slash", "x", "enter", "n")
        assert app.is_running


async def test_nasty_names_and_reasons_are_shown_harmlessly(demo: Stage) -> None:
    with demo.store.transaction() as tx:
        tx.execute("UPDATE tasks SET reason = ?, content = ?, phase = ? WHERE run_id = ?",
                   (NASTY[0], NASTY[2] + NASTY[0], NASTY[2] + "\x1b[1m", RUN_ID))  # fmt: skip
        tx.execute("UPDATE runs SET reason = ?, started_by = ?, host = ? WHERE id = ?",
                   (NASTY[0], NASTY[1], "[red]host\x1b[31m", RUN_ID))  # fmt: skip
    async with opened(demo, app=make_app(demo)) as (app, pilot):
        for key in "w", "e", "2", "3", "4", "5", "6", "1", "C":
            await pilot.press(key)
            await pilot.pause()
            assert "\x1b" not in screen_text(app)
            assert "\x1b" not in app.export_screenshot()


@pytest.mark.parametrize(
    "data", ["[]", "null", '"text"', '{"line": {"deep": [1, 2]}}', '{"done": "x", "total": []}', '{"reason": 7}']
)
async def test_malformed_events_are_survived(demo: Stage, data: str) -> None:
    async with opened(demo) as (app, pilot):
        with demo.store.transaction() as tx:
            for kind in (
                "log",
                "progress",
                "metric",
                "fact",
                "artifact",
                "task.failed",
                "task.no-such",
                "",
                "run.finished",
            ):
                tx.execute("INSERT INTO events (run_id, task_key, kind, data_json, at, pid) VALUES (?, ?, ?, ?, 0, 1)",
                           (RUN_ID, "bench-budgets", kind, data))  # fmt: skip
            tx.execute("INSERT INTO events (run_id, task_key, kind, data_json, at, pid) VALUES (?, 'nobody', 'task.failed', ?, 0, 1)",
                       (RUN_ID, data))  # fmt: skip
        demo.script.log("bench-budgets", "still here")
        await until(pilot, lambda: "still here" in screen_text(app))


async def test_an_event_that_is_not_json_is_said_and_the_screen_stays(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        with demo.store.transaction() as tx:
            tx.execute(
                "INSERT INTO events (run_id, task_key, kind, data_json, at, pid) VALUES (?, 'x', 'log', '{', 0, 1)",
                (RUN_ID,),
            )
        await until(pilot, lambda: "the store cannot be read" in screen_text(app))
        with demo.store.transaction() as tx:
            tx.execute("DELETE FROM events WHERE data_json = '{'")
        await until(pilot, lambda: "the store cannot be read" not in screen_text(app))
        demo.script.log("bench-budgets", "back again")
        await until(pilot, lambda: "back again" in screen_text(app))


@pytest.mark.parametrize("kind", ["bench.row", "bench.result", "gpu", "release", "service", "deadman", "drift"])
async def test_malformed_facts_are_survived(demo: Stage, kind: str) -> None:
    async with opened(demo) as (app, pilot):
        for data in ({}, {"gpus": [1, None, {"index": []}]}, {"arms": 7, "verdict": 3, "since": "x"}, {"items": [[], 3]},
                     {"armed": True, "fires_at": "soon", "seconds": []}):  # fmt: skip
            demo.script.fact("bench-budgets", kind, "odd", data)
        demo.script.log("bench-budgets", "still here")
        await until(pilot, lambda: "still here" in screen_text(app))
        for key in "23":
            await pilot.press(key)
            await pilot.pause()
        assert app.is_running


async def test_a_store_that_is_not_there_yet_is_waited_for(
    demo: Stage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("later")
    app = OrchestrateApp(f"sqlite:///{folder / 'state.db'}", None, demo.hosts_file, Prefs(), clock=demo.clock)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "there is no store" in screen_text(app))
        clock = Clock()
        with new_store(folder, clock) as store:
            await until(pilot, lambda: "No run in this store yet" in screen_text(app))
            Script.begin(store, clock)
            await until(pilot, lambda: "deploy-ddtree on pro6000" in screen_text(app))
        await until(pilot, lambda: not app.query_one("#banner").has_class("-shown"))


async def test_a_store_that_vanishes_is_said_and_found_again(demo: Stage) -> None:
    path = demo.folder / "state.db"
    async with opened(demo) as (app, pilot):
        demo.store.database.close()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        moved = path.rename(path.with_name("moved.db"))
        await until(pilot, lambda: "moved or removed" in screen_text(app) or "there is no store" in screen_text(app))
        assert "bench-budgets" in screen_text(app)
        moved.rename(path)
        await until(pilot, lambda: not app.query_one("#banner").has_class("-shown"))
        with open_store(demo.url) as store:
            store.events.append(RUN_ID, "bench-budgets", "log", {"line": "after the gap"})
            await until(pilot, lambda: "after the gap" in screen_text(app))


async def test_a_locked_store_keeps_the_screen_alive(demo: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program holds the file exclusively: keys still work, and the screen says how long it has heard nothing."""
    monkeypatch.setattr(app_module, "SILENT_S", 0.5)
    async with opened(demo) as (app, pilot):
        demo.store.database.close()
        blocker = sqlite3.connect(demo.folder / "state.db", isolation_level=None, check_same_thread=False)
        locked = threading.Event()

        def lock(store: Store) -> None:
            """In the feed's own thread, because its open connection would keep the lock from being granted."""
            store.database.close()
            blocker.execute("PRAGMA locking_mode = EXCLUSIVE")
            blocker.execute("BEGIN EXCLUSIVE")
            locked.set()

        app.feed._ask("lock", lock)
        await until(pilot, locked.is_set)
        await until(pilot, lambda: "the store has not answered" in screen_text(app))
        before = app.run_view.task_tree.cursor
        await pilot.press("k")
        await until(pilot, lambda: app.run_view.task_tree.cursor == before - 1)
        blocker.execute("COMMIT")
        blocker.execute("PRAGMA locking_mode = NORMAL")
        blocker.close()
        await until(pilot, lambda: "the store has not answered" not in screen_text(app))


async def test_a_dead_run_process_is_shown_with_the_way_on(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        name = ProcessName.from_text(demo.store.runs.get(RUN_ID).process)
        assert name is not None
        gone = ProcessName(name.machine, name.boot, name.namespace, name.pid, "1").to_text()
        with demo.store.transaction() as tx:
            tx.execute("UPDATE runs SET process = ? WHERE id = ?", (gone, RUN_ID))
        await until(pilot, lambda: "its process is gone: press r to resume" in screen_text(app))


@pytest.mark.parametrize("size", [(80, 24), (300, 80), (40, 12), (100, 24), (20, 6)])
async def test_any_size_shows_and_comes_back(demo: Stage, size: tuple[int, int]) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("3")
        await pilot.resize_terminal(*size)
        await pilot.press(*"345612")
        await pilot.resize_terminal(120, 40)
        await pilot.press("1")
        await until(pilot, lambda: "bench-budgets" in screen_text(app) and "pair 7 of 12" in screen_text(app))


def test_a_run_that_is_not_there_is_refused_before_any_screen(demo: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTUAL_DRIVER", "never reached")
    with pytest.raises(UsageError, match="no run nowhere"):
        open_tui(demo.url, "nowhere", demo.hosts_file)


def test_the_core_does_not_know_textual() -> None:
    """Everything below the two faces imports without the TUI's libraries, and so does the command line's frame."""
    code = (
        "import sys, pkgutil, importlib, orchestrator\n"
        "for package in ('graph', 'store', 'hosts', 'transport', 'remote', 'release', 'bench', 'openai', 'report'):\n"
        "    top = importlib.import_module(f'orchestrator.{package}')\n"
        "    for found in pkgutil.walk_packages(top.__path__, top.__name__ + '.'):\n"
        "        if '.migrations' not in found.name and '.scripts' not in found.name:\n"
        "            importlib.import_module(found.name)\n"
        "import orchestrator.cli.main, orchestrator.cli.tui\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('textual', 'textual_plot', 'textual_serve', 'torch')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=os.getcwd())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


async def test_the_clock_ticks_on_while_a_question_is_open(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("C")
        await until(pilot, lambda: app.screen is not app.screen_stack[0])
        demo.clock.now += 10
        app._tick()
        demo.script.finish("bench-budgets")
        await until(pilot, lambda: "12 of 16 tasks done" in app.head.plain)
        await pilot.press("escape")
        await until(pilot, lambda: "12 of 16 tasks done" in screen_text(app))
