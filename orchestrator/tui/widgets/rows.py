"""A table to choose from, with vim keys; the cursor stays on its row while the table changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from orchestrator.tui.blocks import Span
from orchestrator.tui.look import Look


class Rows(DataTable[Text]):
    """Rows of spans, each with a key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("h", "scroll_left", "Left", show=False),
        Binding("l", "scroll_right", "Right", show=False),
        Binding("g", "scroll_top", "First", show=False),
        Binding("G", "scroll_bottom", "Last", show=False),
        Binding("ctrl+f,ctrl+d", "page_down", "Page down", show=False),
        Binding("ctrl+b,ctrl+u", "page_up", "Page up", show=False),
    ]

    def __init__(self, look: Look, columns: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self.look = look
        self.keys: list[str] = []
        self._columns_wanted = columns
        self._shown: list[list[Span]] = []

    def on_mount(self) -> None:
        self.add_columns(*self._columns_wanted)

    @property
    def current(self) -> str | None:
        return self.keys[self.cursor_row] if 0 <= self.cursor_row < len(self.keys) else None

    def show(self, keys: Sequence[str], rows: Sequence[list[Span]], *, anew: bool = False) -> None:
        if not anew and list(rows) == self._shown and list(keys) == self.keys:
            return
        before = self.current
        self.keys, self._shown = list(keys), list(rows)
        self.clear()
        for row in rows:
            self.add_row(*(Text(cell.text, self.look.tones[cell.tone]) for cell in row))
        self._measure()
        if before in self.keys:
            self.move_cursor(row=self.keys.index(before), animate=False)

    def _measure(self) -> None:
        """Set every column's width now: left to the table's idle time, rows that are replaced meanwhile go unmeasured."""
        for index, column in enumerate(self.ordered_columns):
            widths = [cell_len(row[index].text) for row in self._shown if index < len(row)]
            column.content_width = max([column.label.cell_len, *widths])
        self.refresh(layout=True)

    def dress(self, look: Look) -> None:
        self.look = look
        self.show(self.keys, self._shown, anew=True)
