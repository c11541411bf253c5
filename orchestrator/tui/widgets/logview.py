"""The log: follows the end until someone scrolls up, wraps or scrolls sideways, is searched and copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from orchestrator.tui.logtext import LogLine, replaces, without_passed
from orchestrator.tui.look import Look
from orchestrator.tui.widgets.lines import LineView
from orchestrator.tui.words import Tone, clock_time

KEEP = 5_000
STAMP = 11  # a space, the time, two spaces


class LogView(LineView, can_focus=True):
    """Lines of one task, or of the whole run with the task's name on each. Keeps the newest KEEP lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", "Up", show=False),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("pageup,ctrl+b,ctrl+u", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f,ctrl+d", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "Oldest line", show=False),
        Binding("end,G", "edge(1)", "Newest line, follow", show=False),
        Binding("left,h", "sideways(-8)", "Left", show=False),
        Binding("right,l", "sideways(8)", "Right", show=False),
        Binding("W", "wrap", "Wrap lines", show=False),
        Binding("n", "match(1)", "Next match", show=False),
        Binding("N", "match(-1)", "Previous match", show=False),
        Binding("y", "copy", "Copy what is on screen", show=False),
        Binding("Y", "save", "Save and copy the whole log", show=False),
    ]

    class Changed(Message):
        """What the line above the log says may be different now."""

    class Save(Message):
        """The whole log is to be written to a file."""

        def __init__(self, text: str) -> None:
            self.text = text
            super().__init__()

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look = look
        self.lines: list[LogLine] = []
        self.missing = 0
        self.named = False
        self.wrapped = True
        self.following = True
        self.pattern = ""
        self.matches: list[int] = []
        self.match_at = -1
        self._rows: list[tuple[int, int, str]] = []  # index of the line, number of its row, text
        self._width = 0

    # Content

    def show(self, lines: Iterable[LogLine], missing: int, named: bool, *, again: bool = False) -> None:
        """A whole log; `again` when it is the one on screen, in which who scrolled up stays."""
        self.lines, self.missing, self.named = without_passed(lines)[-KEEP:], missing, named
        self.following = self.following if again else True
        self._lay_out()

    def add(self, lines: list[LogLine]) -> None:
        if not lines:
            return
        lines = without_passed(lines)
        if self.lines and replaces(lines[0], self.lines[-1]):
            self._drop_last()
        start = len(self.lines)
        self.lines.extend(lines)
        if len(self.lines) > KEEP + KEEP // 4:
            dropped = len(self.lines) - KEEP
            self.missing += dropped
            del self.lines[:dropped]
            self._lay_out()
            return
        for index in range(start, len(self.lines)):
            self._rows.extend(self._rows_of(index))
            if self.pattern and self.pattern in self.lines[index].text.casefold():
                self.matches.append(index)
        self._grown()

    def _drop_last(self) -> None:
        last = len(self.lines) - 1
        self.lines.pop()
        while self._rows and self._rows[-1][0] == last:
            self._rows.pop()
        if self.matches and self.matches[-1] == last:
            self.matches.pop()

    def search(self, pattern: str) -> None:
        """Marks every line that holds the text and goes to the last one."""
        self.pattern = pattern.casefold()
        self._find()
        self.match_at = len(self.matches)
        self.action_match(-1)
        self.refresh()
        self.post_message(self.Changed())

    @property
    def status(self) -> str:
        parts = ["following" if self.following else "paused, End follows"]
        if self.pattern:
            place = f"{self.match_at + 1} of {len(self.matches)}" if self.matches else "no match"
            parts.insert(0, f"“{self.pattern}” {place}")
        if not self.wrapped:
            parts.append("no wrap")
        if self.missing:
            parts.append(f"{self.missing:,} earlier events: orchestrate logs")
        return " · ".join(parts)

    # Layout

    def _lay_out(self) -> None:
        self._width = self.size.width
        self._rows = [row for index in range(len(self.lines)) for row in self._rows_of(index)]
        self._find()
        self._grown()

    def _find(self) -> None:
        self.matches = (
            [index for index, line in enumerate(self.lines) if self.pattern in line.text.casefold()]
            if self.pattern
            else []
        )

    def _rows_of(self, index: int) -> list[tuple[int, int, str]]:
        line = self.lines[index]
        text = f"{line.task_key}: {line.text}" if self.named and line.task_key else line.text
        room = self._width - STAMP - 1
        if not self.wrapped or room < 8 or cell_len(text) <= room:
            return [(index, 0, text)]
        return [(index, number, part) for number, part in enumerate(wrap(text, room))]

    def _grown(self) -> None:
        widest = 0 if self.wrapped else STAMP + max((cell_len(row[2]) for row in self._rows), default=0)
        self.virtual_size = Size(widest, len(self._rows))
        self._keep_at_end()
        self.call_after_refresh(self._keep_at_end)  # a scrollbar that came or went changes where the end is
        self.refresh()
        self.post_message(self.Changed())

    def _keep_at_end(self) -> None:
        if self.following:
            self.scroll_to(y=len(self._rows), animate=False, force=True, immediate=True)

    def on_resize(self, event: events.Resize) -> None:
        if self.size.width != self._width:
            self._lay_out()
        else:
            self._keep_at_end()

    # Drawing

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width, base = self.size.width, self.base
        if scroll_y + y >= len(self._rows):
            empty = "nothing yet" if not self.lines and y == 0 else ""
            return Strip([Segment(empty, base + self.look.tones[Tone.DIM])]).adjust_cell_length(width, base)
        index, number, text = self._rows[scroll_y + y]
        line = self.lines[index]
        stamp = f" {clock_time(line.at)}  " if number == 0 else " " * STAMP
        style = base + self.look.tones[line.tone]
        segments = [Segment(stamp, base + self.look.tones[Tone.DIM]), *self._marked(text, style)]
        return Strip(segments).crop_extend(scroll_x, scroll_x + width, base)

    def _marked(self, text: str, style: Style) -> list[Segment]:
        if not self.pattern:
            return [Segment(text, style)]
        segments, start, folded = [], 0, text.casefold()
        while len(folded) == len(text) and (at := folded.find(self.pattern, start)) >= 0:
            end = at + len(self.pattern)
            segments += [Segment(text[start:at], style), Segment(text[at:end], style + self.look.match)]
            start = end
        return [*segments, Segment(text[start:], style)]

    # Moving

    def _scroll_by(self, rows: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + rows, animate=False, force=True, immediate=True)
        self._note_place()

    def _note_place(self) -> None:
        following = self.scroll_offset.y >= self.max_scroll_y
        if following != self.following:
            self.following = following
            self.post_message(self.Changed())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value:
            self._note_place()

    def action_scroll(self, rows: int) -> None:
        self._scroll_by(rows)

    def action_page(self, pages: int) -> None:
        self._scroll_by(pages * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        self.scroll_to(y=len(self._rows) if end > 0 else 0, animate=False, force=True, immediate=True)
        self._note_place()

    def action_sideways(self, cells: int) -> None:
        self.scroll_to(x=self.scroll_offset.x + cells, animate=False, force=True, immediate=True)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._scroll_by(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._scroll_by(-3)

    def action_wrap(self) -> None:
        self.wrapped = not self.wrapped
        self.scroll_to(x=0, animate=False, force=True, immediate=True)
        self._lay_out()

    def action_match(self, by: int) -> None:
        if not self.matches:
            return
        self.match_at = (self.match_at + by) % len(self.matches)
        index = self.matches[self.match_at]
        row = next((at for at, item in enumerate(self._rows) if item[0] == index), 0)
        self.scroll_to(y=max(0, row - self.size.height // 2), animate=False, force=True, immediate=True)
        self._note_place()
        self.post_message(self.Changed())

    def action_copy(self) -> None:
        start = self.scroll_offset.y
        shown = sorted({row[0] for row in self._rows[start : start + self.size.height]})
        self.app.copy_to_clipboard("\n".join(self.lines[index].stamped for index in shown))
        self.app.notify(f"{len(shown)} lines copied")

    def action_save(self) -> None:
        self.post_message(self.Save("\n".join(line.stamped for line in self.lines) + "\n"))


def wrap(text: str, width: int) -> list[str]:
    """Parts of at most `width` cells, cut at spaces where that leaves no part mostly empty."""
    parts = []
    while cell_len(text) > width:
        end = len(chop_cells(text[: width + 1], width)[0])
        space = text.rfind(" ", end // 2, end + 1)
        cut = space if space > 0 else end
        parts.append(text[:cut])
        text = text[cut:].lstrip(" ") if space > 0 else text[cut:]
    return [*parts, text]
