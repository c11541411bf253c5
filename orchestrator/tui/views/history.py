"""The history view: runs, newest first; two of them compared."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from orchestrator.store.records import RunRecord
from orchestrator.tui.feed import Comparison, Lists, Update
from orchestrator.tui.look import Look
from orchestrator.tui.pages.history import COLUMNS, history_rows, one_run_page
from orchestrator.tui.views.base import View
from orchestrator.tui.widgets.blockview import BlockView
from orchestrator.tui.widgets.rows import Rows


class HistoryView(View):
    """Enter shows a run, space marks one, d compares the marked one with the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "Mark"),
        Binding("d", "compare", "Compare with marked"),
    ]

    class Show(Message):
        def __init__(self, run_id: str) -> None:
            self.run_id = run_id
            super().__init__()

    class Compare(Message):
        def __init__(self, old: str, new: str) -> None:
            self.old, self.new = old, new
            super().__init__()

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(look, id=id)
        self.table = Rows(look, COLUMNS, id="runs")
        self.page = BlockView(look, id="comparison")
        self.runs: tuple[RunRecord, ...] = ()
        self.marked: str | None = None
        self._shown: str | None = None
        self._now = 0.0
        self._compared_at: str | None = None  # the row under the cursor when the comparison came

    def compose(self) -> ComposeResult:
        yield self.table
        yield self.page

    def show(self, update: Update, now: float) -> None:
        self._shown = update.reading.run.id if update.reading.run else None
        self._fill(now)

    def show_lists(self, lists: Lists, now: float) -> None:
        self.runs = lists.runs
        self._fill(now)

    def show_comparison(self, comparison: Comparison) -> None:
        self._compared_at = self.table.current
        self.page.show(comparison.blocks)
        self.page.scroll_home(animate=False)

    def tick(self, now: float) -> None:
        if self.display and any(run.state.active for run in self.runs):
            self._fill(now)

    def _fill(self, now: float) -> None:
        self._now = now
        self.table.show([run.id for run in self.runs], history_rows(self.runs, self._shown, self.marked, now))

    @on(Rows.RowHighlighted)
    def _show_details(self) -> None:
        """Not over a comparison: the table says so too when it is only drawn anew with the cursor where it was."""
        if self.table.current == self._compared_at:
            return
        self._compared_at = None
        run = next((run for run in self.runs if run.id == self.table.current), None)
        if run is not None:
            self.page.show(one_run_page(run, self._now))

    @on(Rows.RowSelected)
    def _selected(self, event: Rows.RowSelected) -> None:
        event.stop()
        if self.table.current:
            self.post_message(self.Show(self.table.current))

    def action_mark(self) -> None:
        self.marked = None if self.marked == self.table.current else self.table.current
        self._fill(self._now)

    def action_compare(self) -> None:
        current = self.table.current
        if current is None or self.marked in (None, current):
            self.app.notify("mark another run with space first", severity="warning")
            return
        assert self.marked is not None
        ages = {run.id: run.created_at for run in self.runs}
        old, new = sorted((self.marked, current), key=lambda run_id: ages.get(run_id, 0.0))
        self.post_message(self.Compare(old, new))

    def dress(self, look: Look) -> None:
        super().dress(look)
        self.table.dress(look)
        self.page.look = look
        self.page.show(self.page.blocks, anew=True)

    def focus_first(self) -> None:
        self.screen.set_focus(self.table)
