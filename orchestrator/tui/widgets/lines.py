"""What tree and log have in common: lines that are drawn one by one, as many as fit on the screen."""

from __future__ import annotations

from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip


class LineView(ScrollView, can_focus=True):
    """Subclasses set `virtual_size` and draw line y in render_line, on top of `base`."""

    virtual_size = Reactive(
        Size(0, 0), layout=False
    )  # more lines move no other widget: the screen is not laid out anew

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.base = Style()  # of a plain cell, looked up once for all lines that are drawn together

    def watch_virtual_size(self, size: Size) -> None:
        self._scroll_update(size)
        self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        self.base = self.rich_style
        return super().render_lines(crop)
