"""The lines around the views: the header that flows to the width, and tabs on one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

from orchestrator.tui.blocks import Line, text_of
from orchestrator.tui.look import Look
from orchestrator.tui.widgets.blockview import styled
from orchestrator.tui.words import Tone

GAP = "  "


class Header(Static):
    """Segments in as many lines as the width asks for; none is cut but one wider than the screen, which wraps."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look = look
        self.segments: Sequence[Line] = ()
        self._lines = 0

    def show(self, segments: Sequence[Line], *, anew: bool = False) -> None:
        if anew or list(segments) != list(self.segments):
            self.segments = segments
            self._flow()

    @property
    def fits(self) -> bool:
        """Whether the layout gave as many rows as the lines need."""
        most = self.styles.max_height
        wanted = min(self._lines, int(most.value)) if most else self._lines
        return wanted in (0, self.content_size.height)

    def settle(self) -> None:
        """Ask for the rows again that a layout did not give: one that is under way on a busy machine can miss a change."""
        if not self.fits:
            self.refresh(layout=True)

    def on_resize(self, event: events.Resize) -> None:
        self._flow()

    def _flow(self) -> None:
        width = self.content_size.width or max(1, self.app.size.width - 2)
        lines: list[Text] = []
        for segment in self.segments:
            text = styled(segment, self.look)
            if lines and lines[-1].cell_len + len(GAP) + text.cell_len <= width:
                lines[-1] = Text.assemble(lines[-1], GAP, text)
            else:
                lines.append(text)
        wraps = any(line.cell_len > width for line in lines)
        self.update(Text("\n").join(lines), layout=wraps or len(lines) != self._lines)
        self._lines = 0 if wraps else len(lines)  # how many rows a wrapped one takes only the layout knows

    @property
    def plain(self) -> str:
        return GAP.join(text_of(segment) for segment in self.segments)


class TabLine(Static):
    """Names on one line, the active one marked; a click chooses. `keys` are shown before the names."""

    class Chosen(Message):
        def __init__(self, line: TabLine, name: str) -> None:
            self.line = line
            self.name = name
            super().__init__()

        @property
        def control(self) -> TabLine:
            return self.line

    def __init__(self, look: Look, names: Sequence[tuple[str, str, str]], *, id: str | None = None) -> None:
        """`names`: (name, key, title) of each tab."""
        super().__init__(id=id)
        self.look = look
        self.names = names
        self.active = names[0][0]
        self.note = ""
        self._ends: list[tuple[int, str]] = []

    def on_mount(self) -> None:
        self.redraw()

    def activate(self, name: str) -> None:
        self.active = name
        self.redraw()

    def say(self, note: str) -> None:
        """A remark after the tabs, where there is room."""
        if note != self.note:
            self.note = note
            self.redraw()

    def redraw(self) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        self._ends = []
        for name, key, title in self.names:
            if name == self.active:
                text.append(f" {key} {title} ", self.look.cursor)
            else:
                text.append(f" {key}", self.look.tones[Tone.BUSY])
                text.append(f" {title} ", self.look.tones[Tone.PLAIN])
            self._ends.append((text.cell_len, name))
        if self.note:
            text.append(f"  {self.note}", self.look.tones[Tone.DIM])
        self.update(text, layout=False)

    def on_click(self, event: events.Click) -> None:
        for end, name in self._ends:
            if event.x < end:
                self.post_message(self.Chosen(self, name))
                return
