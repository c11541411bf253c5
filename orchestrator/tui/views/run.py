"""The run view: the graph as a tree of phases, and beside it log, reasons, evidence and changes of one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Input
from textual.widgets.input import Selection

from orchestrator.store.records import TaskRecord
from orchestrator.tui.blocks import Block, Page
from orchestrator.tui.feed import Log, TaskDetail, Update
from orchestrator.tui.logtext import log_lines
from orchestrator.tui.look import Look
from orchestrator.tui.pages.run import run_page
from orchestrator.tui.pages.task import changes_page, evidence_page, why_page
from orchestrator.tui.views.base import View
from orchestrator.tui.widgets.bars import TabLine
from orchestrator.tui.widgets.blockview import BlockView
from orchestrator.tui.widgets.logview import LogView
from orchestrator.tui.widgets.tasktree import TaskTree

PARTS = (("log", "l", "Log"), ("why", "w", "Why"), ("evidence", "e", "Evidence"), ("changes", "p", "Plan"))
REST_S = 0.06
SHARES = (25, 33, 40, 50, 60, 70)


class SearchField(Input):
    """Enter is done at once: the next key finds the part that was searched."""

    def __init__(self, done: Callable[[], None], *, id: str) -> None:
        super().__init__(placeholder="search, Enter to go, Esc to leave", id=id, compact=True, select_on_focus=False)
        self._done = done

    async def action_submit(self) -> None:
        self._done()


class RunView(View):
    """Owns no state but what is selected, folded and searched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "part('log')", "Log", show=False),
        Binding("w", "part('why')", "Why", show=False),
        Binding("e", "part('evidence')", "Evidence", show=False),
        Binding("p", "part('changes')", "Plan", show=False),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("escape", "leave_search", "Leave search", show=False),
        Binding("less_than_sign", "resize(-1)", "Smaller tree", show=False, key_display="<"),
        Binding("greater_than_sign", "resize(1)", "Larger tree", show=False, key_display=">"),
    ]

    class WantLog(Message):
        """The log of another task (None: of the run) is to be shown."""

        def __init__(self, task_key: str | None) -> None:
            self.task_key = task_key
            super().__init__()

    class WantDetail(Message):
        def __init__(self, task_key: str) -> None:
            self.task_key = task_key
            super().__init__()

    class WantPlan(Message):
        """The host is to be asked what the graph would change."""

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(look, id=id)
        self.task_tree = TaskTree(look, self._task_chosen, id="tree")
        self.log_view = LogView(look, id="log")
        self.why = BlockView(look, id="why")
        self.evidence = BlockView(look, id="evidence")
        self.changes = BlockView(look, id="changes")
        self.parts = TabLine(look, PARTS, id="parts")
        pages = (self.log_view, self.why, self.evidence, self.changes)
        self.switcher = ContentSwitcher(*pages, id="parts-switch", initial="log")
        self.field = SearchField(self._searched_for, id="search")
        self.share = 2
        self.detail: TaskDetail | None = None
        self.plan: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
        self.plan_problem = ""
        self._asking = False
        self._searched: TaskTree | LogView = self.task_tree
        self._selected: str | None = None
        self._log_run: str | None = None
        self._log_shown: tuple[str | None, str | None] | None = None  # run and task whose log is on screen
        self._rest: Timer | None = None

    def compose(self) -> ComposeResult:
        with Container(id="run-split"):
            yield self.task_tree
            with Vertical(id="detail"):
                yield self.parts
                yield self.switcher
        yield self.field

    def on_mount(self) -> None:
        self.field.display = False
        self._apply_share()

    @property
    def selected_task(self) -> TaskRecord | None:
        return self.task_tree.current_task

    @property
    def moving(self) -> bool:
        """The cursor came to its task so lately that the log is still to be asked for."""
        return self._rest is not None

    # Readings

    def show(self, update: Update, now: float) -> None:
        run_id = update.reading.run.id if update.reading.run else None
        moved = update.fresh or len(update.reading.tasks) != len(self.task_tree.reading.tasks)
        reopen = moved or (bool(self.task_tree.pattern) and bool(update.delta.tasks))
        self.task_tree.show(update.reading, now, rebuilt=reopen)
        if update.fresh:
            self.plan, self.plan_problem, self.detail, self._asking = None, "", None, False
            self._log_run, self._log_shown = run_id, None
            if run_id is not None:
                self.task_tree.action_jump_to_running()
            self._select(self.selected_task.key if self.selected_task else None, anew=True)
            return
        if update.delta.tasks and self.log_view.following:  # who scrolled up reads, and keeps the task
            self.task_tree.follow()
        if self._log_shown == (run_id, self._selected):  # else the log that was asked for brings them
            new = [event for event in update.delta.events if self._selected in (None, event.task_key)]
            self.log_view.add([line for event in new for line in log_lines(event)])
        if self._selected in update.delta.tasks:
            self._ask_detail()
        self._show_pages(now)

    def show_log(self, log: Log) -> None:
        if log.run_id == self._log_run and log.task_key == self._selected:
            again = self._log_shown == (log.run_id, log.task_key)
            self._log_shown = (log.run_id, log.task_key)
            self.log_view.show(log.lines, log.missing, named=log.task_key is None, again=again)

    def show_detail(self, detail: TaskDetail, now: float) -> None:
        if detail.task_key == self._selected:
            self.detail = detail
            self._show_pages(now)

    def show_plan(self, plan: Mapping[str, Sequence[Mapping[str, Any]]] | None, problem: str, now: float) -> None:
        self.plan, self.plan_problem, self._asking = plan, problem, False
        self._show_pages(now)

    def tick(self, now: float) -> None:
        if self.task_tree.reading.run is not None and self.task_tree.reading.run.state.active:
            self.task_tree.tick(now)
            self._show_pages(now)

    def _select(self, key: str | None, *, anew: bool = False) -> None:
        if key == self._selected and not anew:
            return
        self._selected, self.detail = key, None
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(REST_S, self._ask_for_selected)
        self._show_pages(self.task_tree.now)

    def _ask_for_selected(self) -> None:
        """Once the cursor rests: a key held down then moves as fast as it paints."""
        self._rest = None
        self.post_message(self.WantLog(self._selected))
        self._ask_detail()

    def _ask_detail(self) -> None:
        """Reasons and proof are looked up only while a page shows them."""
        if self._selected is not None and self.parts.active in ("why", "evidence"):
            self.post_message(self.WantDetail(self._selected))

    def _show_pages(self, now: float) -> None:
        """Only the page in front is drawn: the others would cost a layout with every key."""
        reading, task = self.task_tree.reading, self.selected_task
        detail = self.detail if task and self.detail and self.detail.task_key == task.key else None
        if self.parts.active == "why":
            explained = detail.explained if detail else ()
            self.why.show(why_page(reading, task.key, explained, now) if task else run_page(reading, now))
        elif self.parts.active == "evidence":
            evidence = detail.evidence if detail else None
            self.evidence.show(evidence_page(task, evidence, now) if task else _choose())
        elif self.parts.active == "changes":
            changes = None if self.plan is None or task is None else self.plan.get(task.key, ())
            self.changes.show(
                changes_page(task, changes, self.plan_problem, asking=self._asking) if task else _choose()
            )

    # Keys

    def focus_first(self) -> None:
        self.screen.set_focus(self.task_tree)

    def dress(self, look: Look) -> None:
        super().dress(look)
        for part in (self.task_tree, self.log_view, self.parts, self.why, self.evidence, self.changes):
            part.look = look
        for page in (self.why, self.evidence, self.changes):
            page.show(page.blocks, anew=True)
        self.parts.redraw()
        self.refresh(recompose=False)

    def action_part(self, name: str) -> None:
        self.give_room_back()
        again = self.parts.active == name
        self.parts.activate(name)
        self.switcher.current = name
        if name == "changes" and (self.plan is None or again) and not self._asking and self._selected is not None:
            self._asking = True
            self.post_message(self.WantPlan())
        self._ask_detail()
        self._show_pages(self.task_tree.now)
        self._say_status()

    @on(TabLine.Chosen, "#parts")
    def _part_chosen(self, event: TabLine.Chosen) -> None:
        event.stop()
        self.action_part(event.name)

    @on(TaskTree.Moved)
    def _tree_moved(self, event: TaskTree.Moved) -> None:
        self._select(event.key)

    def _task_chosen(self) -> None:
        self.action_part("log")
        self.screen.set_focus(self.log_view)

    @on(LogView.Changed)
    def _say_status(self) -> None:
        self.parts.say(self.log_view.status if self.parts.active == "log" else "")

    def action_search(self) -> None:
        """In the log while it has the keyboard, in the tree else."""
        self.give_room_back()
        self._searched = self.log_view if self.log_view.has_focus else self.task_tree
        self.field.display = True
        self.field.value = self._searched.pattern
        self.field.selection = Selection(0, len(self.field.value))
        self.screen.set_focus(self.field)  # at once: what is typed next is searched for

    @on(Input.Changed, "#search")
    def _typed(self, event: Input.Changed) -> None:
        if self.field.display:
            self._look_for(event.value)

    def _searched_for(self) -> None:
        self._look_for(self.field.value)
        self._close_search()

    def action_leave_search(self) -> None:
        if self.field.display or self.task_tree.pattern or self.log_view.pattern:
            for part in (self.task_tree, self.log_view):
                self._searched = part
                self._look_for("")
            self._close_search()

    def _look_for(self, pattern: str) -> None:
        if isinstance(self._searched, LogView):
            self._searched.search(pattern)
        else:
            self._searched.filter(pattern)

    def _close_search(self) -> None:
        had = self.field.display
        self.field.display = False
        if had:
            self.screen.set_focus(self._searched)

    def action_resize(self, by: int) -> None:
        self.share = max(0, min(len(SHARES) - 1, self.share + by))
        self._apply_share()

    def _apply_share(self) -> None:
        """The tree's part of the width, or of the height on a narrow screen."""
        share = SHARES[self.share]
        wide = not self.screen.has_class("-narrow")
        self.task_tree.styles.width = f"{share}%" if wide else "100%"
        self.task_tree.styles.height = "100%" if wide else f"{share + 5}%"

    def on_resize(self) -> None:
        self._apply_share()


def _choose() -> list[Block]:
    page = Page()
    page.say("Choose a task of this phase.")
    return page.blocks
