"""The run view under keys and mouse."""

from __future__ import annotations

from textual import events

from orchestrator.graph.model import State
from orchestrator.store.records import RunState
from tests.tui.driving import opened, rest, screen_text, toasts, until
from tests.tui.fixtures import EARLIER_ID, Stage


async def test_opens_on_the_running_task_with_its_log(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        task = app.run_view.selected_task
        assert task is not None
        assert task.key == "bench-budgets"
        for text in (
            "deploy-ddtree on pro6000",
            "pair 7 of 12: budget 32 against linear",
            "[bold]not markup[/bold] and [/] neither",
            "11 of 16 tasks done",
            "verdict inconclusive so far",
        ):
            await until(pilot, lambda text=text: text in screen_text(app))


async def test_moves_with_vim_and_arrow_keys(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        tree = app.run_view.task_tree
        start = tree.cursor
        await pilot.press("k", "k", "up")
        await until(pilot, lambda: tree.cursor == start - 3)
        await pilot.press("j", "down")
        await until(pilot, lambda: tree.cursor == start - 1)
        await pilot.press("g")
        await until(pilot, lambda: tree.cursor == 0)
        await pilot.press("G")
        await until(pilot, lambda: tree.cursor == len(tree.rows) - 1)
        await pilot.press("x")
        await until(pilot, lambda: tree.cursor == start)
        await pilot.press("pageup")
        await until(pilot, lambda: tree.cursor < start)


async def test_the_log_follows_the_cursor(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("g", "j")
        await until(pilot, lambda: "working on reach the host" in screen_text(app))
        await pilot.press("g")
        await until(pilot, lambda: app.run_view.log_view.named)
        assert {line.task_key for line in app.run_view.log_view.lines} >= {"reach-host", "bench-budgets"}


async def test_new_lines_arrive_while_following_and_not_while_scrolled_up(demo: Stage) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        log = app.run_view.log_view
        log.focus()
        demo.script.log("bench-budgets", "the newest line")
        await until(pilot, lambda: "the newest line" in screen_text(app))
        await pilot.press("k", "k", "k")
        await until(pilot, lambda: not log.following)
        place = log.scroll_offset.y
        await until(pilot, lambda: "paused, End follows" in screen_text(app))
        demo.script.log("bench-budgets", *(f"another line {n}" for n in range(40)))
        await until(pilot, lambda: log.lines[-1].text == "another line 39")
        assert log.scroll_offset.y == place
        assert "another line 39" not in screen_text(app)
        await pilot.press("end")
        await until(pilot, lambda: log.following)
        await until(pilot, lambda: "another line 39" in screen_text(app))
        demo.script.log("bench-budgets", "and on it goes")
        await until(pilot, lambda: "and on it goes" in screen_text(app))


async def test_a_log_that_comes_once_more_leaves_who_scrolled_up_where_he_is(demo: Stage) -> None:
    """The cursor may leave a task and come back before its log, which is still on screen, has been read anew."""
    async with opened(demo, size=(80, 24)) as (app, pilot):
        log, tree = app.run_view.log_view, app.run_view.task_tree
        log.focus()
        await pilot.press("g")
        await until(pilot, lambda: not log.following)
        tree.select("smoke-canary")
        tree.select("bench-budgets")
        demo.script.log("smoke-canary", "a line of another task")
        await pilot.pause()
        await rest(pilot)
        assert not log.following
        assert log.scroll_offset.y == 0
        assert {line.task_key for line in log.lines} == {"bench-budgets"}


async def test_who_reads_further_up_keeps_the_task_when_the_run_moves_on(demo: Stage) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        app.run_view.log_view.focus()
        await pilot.press("g")
        await until(pilot, lambda: not app.run_view.log_view.following)
        demo.script.finish("bench-budgets")
        demo.script.start("write-roadmap")
        await until(pilot, lambda: app.reading.tasks["write-roadmap"].state is State.IN_PROGRESS)
        assert app.run_view.selected_task.key == "bench-budgets"
        await pilot.press("end")
        demo.script.event("write-roadmap", "task.applied")
        await until(pilot, lambda: app.run_view.selected_task.key == "write-roadmap")


async def test_how_far_a_task_is_takes_one_line_of_its_log(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        before = len(app.run_view.log_view.lines)
        for done in (8, 9.25, 10):
            demo.script.event("bench-budgets", "progress", text="pairs", done=done, total=12)
        await until(pilot, lambda: "pairs (10 of 12)" in screen_text(app))
        assert len(app.run_view.log_view.lines) == before
        demo.script.log("bench-budgets", "a line between")
        demo.script.event("bench-budgets", "progress", text="pairs", done=11, total=12)
        await until(pilot, lambda: "pairs (11 of 12)" in screen_text(app))
        assert "pairs (10 of 12)" in screen_text(app)


async def test_scrolling_with_the_wheel_stops_following(demo: Stage) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        await pilot._post_mouse_events([_wheel_up()], app.run_view.log_view)
        await until(pilot, lambda: not app.run_view.log_view.following)


def _wheel_up() -> type:
    from textual.events import MouseScrollUp

    return MouseScrollUp


async def test_wrap_can_be_switched_off_and_the_long_line_scrolled(demo: Stage) -> None:
    async with opened(demo, size=(80, 24)) as (app, pilot):
        log = app.run_view.log_view
        log.focus()
        rows = log.virtual_size.height
        await pilot.press("W")
        await until(pilot, lambda: log.virtual_size.height < rows)
        await until(pilot, lambda: log.virtual_size.width > 300)
        await pilot.press("l", "l")
        await until(pilot, lambda: log.scroll_offset.x == 16)
        await until(pilot, lambda: app.prefs.wrap)
        await pilot.press("W")
        await until(pilot, lambda: log.virtual_size.height == rows)
        await until(pilot, lambda: log.scroll_offset.x == 0)


async def test_search_in_the_log(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        log = app.run_view.log_view
        log.focus()
        await pilot.press("slash")
        await pilot.press(*"linear")
        await until(pilot, lambda: len(log.matches) >= 2)
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is log)
        last = log.match_at
        await pilot.press("N")
        await until(pilot, lambda: log.match_at == last - 1)
        await pilot.press("n")
        await until(pilot, lambda: log.match_at == last)
        await until(pilot, lambda: f"“linear” {last + 1} of {len(log.matches)}" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: log.pattern == "")


async def test_filter_the_tree(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        tree = app.run_view.task_tree
        await pilot.press("g")
        for key in ("slash", *"dead"):  # all at once, as after a stall: none is taken for a command
            app._driver.send_message(events.Key(key, None if key == "slash" else key))
        await until(pilot, lambda: app.run_view.field.value == "dead")
        await pilot.press("enter")
        await until(pilot, lambda: [row.key for row in tree.rows if row.key] == ["arm-deadman", "disarm-deadman"])
        assert app.run_view.selected_task.key == "arm-deadman"
        await until(pilot, lambda: app.focused is tree)
        await pilot.press("escape")
        await until(pilot, lambda: len([row for row in tree.rows if row.key]) == 16)


async def test_folding_phases(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        tree = app.run_view.task_tree
        await pilot.press("g", "space")
        await until(pilot, lambda: "reach-host" not in [row.key for row in tree.rows])
        await pilot.press("l")
        await until(pilot, lambda: "reach-host" in [row.key for row in tree.rows])
        await pilot.press("o")
        await until(pilot, lambda: all(row.key is None for row in tree.rows))
        await pilot.press("o")
        await until(pilot, lambda: len([row for row in tree.rows if row.key]) == 16)


async def test_why_evidence_and_what_it_waits_for(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("w")
        await until(pilot, lambda: "works on it, step applying" in screen_text(app))
        await pilot.press("j", "j")
        await until(pilot, lambda: "it waits for bench-budgets, which is in_progress" in screen_text(app))
        await until(pilot, lambda: "Compare budgets with linear in pairs" in screen_text(app))
        await pilot.press("e")
        await until(pilot, lambda: "There is none yet: the task is pending" in screen_text(app))
        await pilot.press("g", "j")
        await until(pilot, lambda: "looked again at reach-host from the outside" in screen_text(app))
        await until(pilot, lambda: "until something contradicts it" in screen_text(app))
        await pilot.press("l")  # unfolds a phase; on a task it is the key of the log, as it says above the page
        await until(pilot, lambda: app.run_view.parts.active == "log")


async def test_a_task_that_ends_changes_tree_header_and_page(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("e")
        demo.script.finish("bench-budgets", output="adopt: budget 32")
        await until(pilot, lambda: "12 of 16 tasks done" in screen_text(app))
        await until(pilot, lambda: "adopt: budget 32" in screen_text(app))
        assert app.reading.tasks["bench-budgets"].state is State.COMPLETED


async def test_enter_goes_to_the_log_and_tab_between_parts(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is app.run_view.log_view)
        await pilot.press("tab")
        await until(pilot, lambda: app.focused is app.run_view.task_tree)


async def test_the_mouse_chooses_tasks_folds_and_switches_pages(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        tree = app.run_view.task_tree
        await pilot.click("#tree", offset=(8, 1))
        await until(pilot, lambda: tree.current_task is not None)
        await until(pilot, lambda: tree.current_task.key == "reach-host")
        await pilot.click("#tree", offset=(2, 0))
        await until(pilot, lambda: "reach-host" not in [row.key for row in tree.rows])
        await pilot.click("#parts", offset=(10, 0))
        await until(pilot, lambda: app.run_view.parts.active == "why")
        await pilot.click("#tabs", offset=(10, 0))
        await until(pilot, lambda: app.tabs.active == "host")


async def test_the_split_moves_and_is_remembered(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        tree = app.run_view.task_tree
        before = tree.size.width
        await pilot.press("greater_than_sign")
        await until(pilot, lambda: tree.size.width > before)
        await pilot.press("less_than_sign", "less_than_sign")
        await until(pilot, lambda: tree.size.width < before)
    assert app.prefs.share == 1


async def test_zoom_gives_the_screen_to_one_part_and_back(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        await pilot.press("enter", "z")
        await until(pilot, lambda: app.screen.maximized is app.run_view.log_view)
        assert "reach-host" not in screen_text(app)
        await pilot.press("z")
        await until(pilot, lambda: app.screen.maximized is None and "reach-host" in screen_text(app))
        await pilot.press("z", "slash", *"pair 7")  # what a key opens would be hidden behind the zoomed part
        await until(pilot, lambda: app.run_view.field.value == "pair 7" and "reach-host" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "“pair 7” 1 of 1" in app.run_view.log_view.status)
        await pilot.press("z", "2")
        await until(pilot, lambda: "Dead-man timer" in screen_text(app))


async def test_copy_and_save_the_log(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        app.run_view.log_view.focus()
        await pilot.press("y")
        await until(pilot, lambda: "pair 7 of 12" in app.clipboard)
        await pilot.press("Y")
        await until(pilot, lambda: "saved as" in toasts(app))
        saved = next((demo.folder / ".run").glob("*bench-budgets-log.txt"))
        assert "pair 7 of 12" in saved.read_text()
        await pilot.press("w")
        app.run_view.why.focus()
        await pilot.press("y")
        await until(pilot, lambda: "state: ▶ in progress" in app.clipboard)


async def test_a_finished_run_says_how_it_ended(demo: Stage) -> None:
    demo.script.fail("bench-budgets", "the server answered 500")
    demo.script.end(RunState.ROLLED_BACK, 4, "the server answered 500; rolled back and verified")
    async with opened(demo) as (app, pilot):
        await until(pilot, lambda: "the server answered 500; rolled back and verified" in screen_text(app))
        assert "ROLLED BACK" in screen_text(app)
        assert "left, by" not in screen_text(app)


async def test_another_run_can_be_shown(demo: Stage) -> None:
    async with opened(demo) as (app, pilot):
        app.feed.show_run(EARLIER_ID)
        await until(pilot, lambda: EARLIER_ID in screen_text(app))
        await until(pilot, lambda: "measured: keep linear" in screen_text(app))
        await until(pilot, lambda: app.run_view.log_view.lines)
