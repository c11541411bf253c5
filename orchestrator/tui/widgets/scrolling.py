"""Pages that are scrolled by keys, each of which counts: nothing moves by and by, or waits for the frame before."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll


class Scrolled(VerticalScroll, can_focus=True):
    """With vim and arrow keys. Typed quickly or over a slow line, they add up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "rows(-1)", "Up", show=False),
        Binding("down,j", "rows(1)", "Down", show=False),
        Binding("pageup,ctrl+b,ctrl+u", "pages(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f,ctrl+d", "pages(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "Top", show=False),
        Binding("end,G", "edge(1)", "Bottom", show=False),
    ]

    def action_rows(self, by: int) -> None:
        self._scroll_at_once(self.scroll_offset.y + by)

    def action_pages(self, by: int) -> None:
        self._scroll_at_once(self.scroll_offset.y + by * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        self._scroll_at_once(self.max_scroll_y if end > 0 else 0)

    def _scroll_at_once(self, y: float) -> None:
        self.scroll_to(y=y, animate=False, force=True, immediate=True)
