"""Host, bench, roadmap, history and to-do views."""

from __future__ import annotations

import pytest
from textual import events

from orchestrator.graph.todolist import TodoList
from orchestrator.store.store import open_store
from orchestrator.tui.app import OrchestrateApp
from orchestrator.tui.blocks import line
from orchestrator.tui.dialogs import FormScreen
from orchestrator.tui.look import NO_COLOUR, OFFERED
from orchestrator.tui.prefs import Prefs
from tests.tui.driving import make_app, opened, rest, screen_text, toasts, until
from tests.tui.fixtures import EARLIER_ID, HOST, START, Stage


async def test_host_view_counts_the_dead_man_timer_down(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "restores found-3fa9c1 in 4:10" in screen_text(app))
        for text in ("DFLASH, no tree", "182.4 tokens/s", "59.6/95.6 GiB", "2107 MHz", "● serving", "ddtree-20260102-64",
                     "sglang.service: drop-in 20-limits.conf was added", "held by"):  # fmt: skip
            assert text in screen_text(app)
        demo.clock.now = START + 240
        app._tick()
        await until(pilot, lambda: "restores found-3fa9c1 in 1:00" in screen_text(app))
        demo.clock.now = START + 301
        app._tick()
        await until(pilot, lambda: "ITS TIME IS UP" in screen_text(app))
        demo.script.fact("switch-service", "deadman", HOST, {"armed": False, "release": "found-3fa9c1"})
        await until(pilot, lambda: "not armed" in screen_text(app))


async def test_host_view_shows_a_release_that_goes_live(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("2")
        demo.script.fact("switch-service", "release", "ddtree-20260102-64",
                         {"id": "ddtree-20260102-64", "state": "live", "algorithm": "DDTREE"})  # fmt: skip
        await until(pilot, lambda: "release ddtree-20260102-64 (DDTREE)" in screen_text(app))


async def test_bench_view_shows_figures_plots_and_refused_rows(demo: Stage) -> None:
    async with opened(demo, size=(120, 60)) as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: "Rows that do not count" in screen_text(app))
        for text in ("1.110", "1.097–1.137", "6 (+1 refused)", "B=64: slower than linear in 6 of 6 pairs",
                     "repetition-loop: the output repeats itself", "speed against linear", "B=16"):  # fmt: skip
            await until(pilot, lambda text=text: text in screen_text(app))


async def test_bench_view_takes_the_stored_verdict_when_the_run_wrote_it(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("3")
        verdict = {"decision": "keep linear", "reason": "no budget gains more than 2 %"}
        demo.script.fact("bench-budgets", "bench.result", demo.script.run_id, {"verdict": verdict, "arms": []})
        await until(pilot, lambda: "keep linear: no budget gains more than 2 %" in screen_text(app))
        assert "verdict keep linear" in screen_text(app)


async def test_roadmap_view_renders_the_document_of_the_store(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("4")
        await until(pilot, lambda: "SGLang DDTree roadmap: pro6000" in screen_text(app))
        await pilot.press("G")
        await until(pilot, lambda: "SGLang DDTree roadmap: pro6000" not in screen_text(app))


async def test_keys_that_come_quickly_all_count(demo: Stage) -> None:
    """As over a slow line: none is lost because the one before has not been painted yet."""
    async with opened(demo, size=(80, 24)) as (app, pilot):
        page = app.query_one("#host-page")
        await pilot.press("2")
        await until(pilot, lambda: "Dead-man timer" in screen_text(app))
        for key in "jjjjj":
            app._driver.send_message(events.Key(key, key))
        await until(pilot, lambda: page.scroll_offset.y == 5)
        app._driver.send_message(events.Key("G", "G"))
        await until(pilot, lambda: page.scroll_offset.y == page.max_scroll_y)


async def test_history_shows_compares_and_opens_runs(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: EARLIER_ID in screen_text(app))
        await pilot.press("d")
        await until(pilot, lambda: "mark another run with space first" in toasts(app))
        await pilot.press("space", "j", "d")
        await until(pilot, lambda: "then" in screen_text(app) and "13:59" in screen_text(app))
        await until(pilot, lambda: "graph shape" in screen_text(app))
        demo.clock.now += 60  # the list is drawn anew with the running run's time, the comparison stays
        app._tick()
        await rest(pilot)
        assert "graph shape" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: app.tabs.active == "run" and f"run {EARLIER_ID}" in screen_text(app))


async def test_to_dos_are_added_edited_claimed_and_finished(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: "Ask who owns the drop-in" in screen_text(app))
        assert "[bold]soon[/bold]" in screen_text(app)
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, FormScreen))
        await pilot.press(*"Call Bo", "enter")
        await until(pilot, lambda: "Call Bo" in screen_text(app) and not isinstance(app.screen, FormScreen))
        await pilot.press("G")
        table = app.query_one("#todos")
        await until(pilot, lambda: app.query_one("#todo").item.content == "Call Bo")
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, FormScreen))
        await pilot.press("end", *" Ye", "enter")
        await until(pilot, lambda: not isinstance(app.screen, FormScreen) and "Call Bo Ye" in screen_text(app))
        await until(pilot, lambda: app.focused is table)
        await pilot.press("c")
        await until(pilot, lambda: app.query_one("#todo").item.status == "in_progress")
        await pilot.press("f")
        await until(pilot, lambda: app.query_one("#todo").item.status == "completed")
        await pilot.press("u")
        await until(pilot, lambda: app.query_one("#todo").item.status == "pending")
        await pilot.press("D")
        await until(pilot, lambda: app.query_one("#todo").item.status == "cancelled")
    kept = [item.content for item in TodoList(demo.store).items() if not item.bound]
    assert "Call Bo Ye" in kept


async def test_a_refused_to_do_says_why(demo: Stage) -> None:
    """Claims lapse, and the screen claims by the real clock: the other's claim has to be as fresh."""
    with open_store(demo.url) as store:
        todos = TodoList(store)
        todos.claim(next(item.id for item in todos.items() if not item.bound), "ada@workbench")
    async with opened(demo) as (app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: "Ask who owns the drop-in" in screen_text(app))
        await pilot.press("c")
        await until(pilot, lambda: "ada@workbench" in toasts(app))


async def test_every_theme_shows_views(demo: Stage) -> None:
    """Two views a theme, in turn; the two default themes are drawn whole as snapshots."""
    views = tuple(zip("123456", ("Log", "Service", "Verdict", "roadmap", EARLIER_ID, "drop-in"), strict=True))
    async with opened(demo, size=(80, 24)) as (app, pilot):
        for number, _ in enumerate(OFFERED):
            await pilot.press("ctrl+t")
            for key, text in (views[2 * number % 6], views[(2 * number + 1) % 6]):
                await pilot.press(key)
                await until(pilot, lambda text=text: text in screen_text(app))


async def test_without_colour_nothing_on_screen_has_one(demo: Stage) -> None:
    app = make_app(demo, theme=NO_COLOUR)
    async with opened(demo, app=app) as (app, pilot):
        for key in "123456":
            await pilot.press(key)
            await pilot.pause()
            svg_colours = {
                str(colour)
                for strip in app.screen._compositor.render_strips(app.size)
                for segment in strip.apply_filter(app._filters[-1], app.screen.styles.background)
                if segment.style
                for colour in (segment.style.color, segment.style.bgcolor)
                if colour is not None and not colour.is_default
            }
            assert svg_colours == set()
        for key, chosen in (("1", "bench-budgets"), ("5", "r20260102-030405-9f3c"), ("6", "Ask who owns")):
            await pilot.press(key)
            await until(pilot, lambda chosen=chosen: chosen in reversed_text(app))
        await pilot.press("colon")
        await pilot.press(*"theme")
        await until(pilot, lambda: "Theme: high-contrast" in screen_text(app))
        await pilot.press("down")
        await until(pilot, lambda: "Theme: textual-light" in reversed_text(app).replace("  ", " "))
        assert "Theme: textual-dark" not in reversed_text(app)


def reversed_text(app: OrchestrateApp) -> str:
    """What stands out without any colour: where the cursor is."""
    background = app.screen.styles.background
    strips = [
        strip.apply_filter(app._filters[0], background) for strip in app.screen._compositor.render_strips(app.size)
    ]
    return "".join(segment.text for strip in strips for segment in strip if segment.style and segment.style.reverse)


async def test_layout_is_remembered(demo: Stage) -> None:
    prefs = Prefs.load()
    app = make_app(demo)
    app.prefs = prefs
    async with opened(demo, app=app) as (app, pilot):
        await pilot.press("ctrl+t", "greater_than_sign")
        app.run_view.log_view.focus()
        await pilot.press("W", "2")
        theme = app.theme
    kept = Prefs.load()
    assert (kept.theme, kept.view, kept.share, kept.wrap) == (theme, "host", 3, False)


def test_preferences_survive_nonsense() -> None:
    prefs = Prefs.load()
    assert prefs.path is not None
    for text in ("", "[]", '{"theme": 7, "share": "x", "view": "host"}', "\x00"):
        prefs.path.parent.mkdir(parents=True, exist_ok=True)
        prefs.path.write_text(text)
        loaded = Prefs.load()
        assert (loaded.theme, loaded.share) == ("textual-dark", 2)
    assert Prefs(theme="no such theme").theme_among(["textual-dark"]) == "textual-dark"


async def test_a_header_whose_rows_a_layout_missed_gets_them(demo: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: "verdict inconclusive so far" in screen_text(app))
        whole, refresh = app.head.segments, app.head.refresh
        with monkeypatch.context() as patch:
            patch.setattr(app, "_show_head", lambda *_, **__: None)
            app.head.show([line("short")])
            await until(pilot, lambda: app.head.content_size.height == 1)
            patch.setattr(app.head, "refresh", lambda *parts, layout=False, **rest: refresh(*parts, **rest))
            app.head.show(whole)
        await until(pilot, lambda: "verdict inconclusive so far" in screen_text(app))
