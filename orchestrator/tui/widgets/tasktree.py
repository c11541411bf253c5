"""The tree of phases and tasks, drawn line by line from the reading: two thousand tasks cost no more than twenty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from orchestrator.graph.model import Priority, State
from orchestrator.store.records import TaskRecord
from orchestrator.tui.look import Look
from orchestrator.tui.model import Reading
from orchestrator.tui.widgets.lines import LineView
from orchestrator.tui.words import SIGNS, Tone, duration, one_line

PRIORITY_SIGNS = {Priority.HIGH: "H", Priority.MEDIUM: "M", Priority.LOW: "L"}
TIME_WIDTH, LEAST_CONTENT = 8, 24


@dataclass(frozen=True)
class Row:
    """A line of the tree: a phase (no key) or a task."""

    phase: str
    key: str | None = None


class TaskTree(LineView, can_focus=True):
    """Phases with their tasks; the cursor stays on its task while the tree changes around it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b,ctrl+u", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f,ctrl+d", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
        Binding("space", "fold", "Fold phase", show=False),
        Binding("left,h", "fold(True)", "Fold", show=False),
        Binding("right", "fold(False)", "Unfold", show=False),
        Binding("l", "unfold", "Unfold; on a task: its log", show=False),
        Binding("o", "fold_all", "Fold or unfold all", show=False),
        Binding("x", "jump_to_running", "Go to the running or failed task", show=False),
        Binding("enter", "choose", "Open the log", show=False),
    ]

    class Moved(Message):
        """The cursor is on another row; `key` is None on a phase."""

        def __init__(self, key: str | None) -> None:
            self.key = key
            super().__init__()

    def __init__(self, look: Look, chosen: Callable[[], None], *, id: str | None = None) -> None:
        """`chosen` is called at once on Enter or a double click: a key typed right after it finds the new focus."""
        super().__init__(id=id)
        self.look = look
        self._chosen = chosen
        self.reading = Reading()
        self.now = 0.0
        self.folded: set[str] = set()
        self.pattern = ""
        self.rows: list[Row] = []
        self.cursor = 0
        self.follows = True  # the running task, until someone moves the cursor
        self._key_width = 0

    @property
    def current(self) -> Row | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def current_task(self) -> TaskRecord | None:
        row = self.current
        return self.reading.tasks.get(row.key) if row and row.key else None

    def show(self, reading: Reading, now: float, *, rebuilt: bool) -> None:
        """`rebuilt` when tasks may have come, gone or moved; else only what the lines say is new."""
        self.reading, self.now = reading, now
        if rebuilt or not self.rows:
            self._key_width = min(28, max((cell_len(key) for key in reading.tasks), default=8))
            self._rebuild()
        else:
            self.refresh()

    def tick(self, now: float) -> None:
        """Only the times of running tasks change."""
        self.now = now
        top = self.scroll_offset.y
        for index in range(top, min(len(self.rows), top + self.size.height)):
            key = self.rows[index].key
            if key is not None and self.reading.tasks[key].state is State.IN_PROGRESS:
                self.refresh_line(index)

    def follow(self) -> None:
        """Moves to the running task if the cursor is to follow the run and stands on one that is over."""
        task = self.current_task
        if self.follows and (task is None or task.state is not State.IN_PROGRESS):
            running = next((item.key for item in self.reading.tasks.values() if item.state is State.IN_PROGRESS), None)
            if running:
                self.select(running)

    def select(self, key: str) -> None:
        task = self.reading.tasks.get(key)
        if task is not None:
            self.folded.discard(task.phase)
            self._rebuild()
            self._go(next((index for index, row in enumerate(self.rows) if row.key == key), self.cursor))

    def filter(self, pattern: str) -> None:
        """Shows only tasks whose key, content, state or reason contains the text."""
        self.pattern = pattern.casefold()
        self._rebuild()
        found = next((index for index, row in enumerate(self.rows) if row.key is not None), None)
        if self.pattern and self.current_task is None and found is not None:
            self.follows = False
            self._go(found)

    def _rebuild(self) -> None:
        self.refresh()
        before = self.current
        rows: list[Row] = []
        for phase, tasks in self.reading.phases.items():
            shown = [task for task in tasks if self._matches(task)]
            if shown:
                rows.append(Row(phase))
                if phase not in self.folded or self.pattern:
                    rows.extend(Row(phase, task.key) for task in shown)
        self.rows = rows
        self.virtual_size = Size(0, len(rows))
        if before is not None and before in rows:
            self.cursor = rows.index(before)
        elif before is not None and Row(before.phase) in rows:
            self._go(rows.index(Row(before.phase)))
        else:
            self._go(min(self.cursor, max(0, len(rows) - 1)))

    def _matches(self, task: TaskRecord) -> bool:
        if not self.pattern:
            return True
        text = f"{task.key} {task.content} {task.state} {task.reason}".casefold()
        return all(word in text for word in self.pattern.split())

    # Drawing

    def render_line(self, y: int) -> Strip:
        index = self.scroll_offset.y + y
        width = self.size.width
        if index >= len(self.rows):
            return Strip.blank(width, self.base)
        row = self.rows[index]
        parts = self._phase_parts(row.phase, width) if row.key is None else self._task_parts(row.key, width)
        base = self.base
        if index == self.cursor and (self.has_focus or self.app.theme == "no-colour"):
            segments = [Segment(text, self.look.cursor) for text, _ in parts]
        elif index == self.cursor:
            segments = [Segment(text, base + style + Style(bold=True, underline=True)) for text, style in parts]
        else:
            segments = [Segment(text, base + style) for text, style in parts]
        return Strip(segments).adjust_cell_length(
            width, self.look.cursor if index == self.cursor and self.has_focus else base
        )

    def _phase_parts(self, phase: str, width: int) -> list[tuple[str, Style]]:
        tasks = self.reading.phases.get(phase, ())
        done = sum(task.state in (State.COMPLETED, State.SKIPPED) for task in tasks)
        mark = "▸" if phase in self.folded and not self.pattern else "▾"
        tail = "".join(
            f" {SIGNS[state][0]}{count}"
            for state in (State.IN_PROGRESS, State.FAILED, State.UNKNOWN, State.ROLLED_BACK)
            if (count := sum(task.state is state for task in tasks))
        )
        tone = Tone.GOOD if done == len(tasks) else Tone.STRONG
        text = f" {mark} {one_line(phase)}  {done}/{len(tasks)}{tail}"
        return [(set_cell_size(text, width), self.look.tones[tone] + Style(bold=True))]

    def _task_parts(self, key: str, width: int) -> list[tuple[str, Style]]:
        task = self.reading.tasks[key]
        sign, tone = SIGNS[task.state]
        style = self.look.tones[tone]
        attempts = f"×{task.attempts} " if task.attempts > 1 else ""
        right = f"{attempts}{PRIORITY_SIGNS[task.priority]} {self._time(task):>{TIME_WIDTH}} "
        left = f"   {sign} "
        room = max(4, width - cell_len(left) - cell_len(right) - 1)
        key_width = min(self._key_width, room)
        words = room - key_width - 2
        quiet = task.state in (State.PENDING, State.SKIPPED)
        content_style = self.look.tones[Tone.DIM if quiet else Tone.PLAIN]
        return [
            (left, style),
            (_fit(key, key_width), style),
            (
                "  " + _fit(self._content(task), words) if words >= LEAST_CONTENT else " " * max(0, words + 2),
                content_style,
            ),
            (" " + right, self.look.tones[Tone.DIM]),
        ]

    def _content(self, task: TaskRecord) -> str:
        if task.state is State.IN_PROGRESS and task.key in self.reading.progress:
            return str(self.reading.progress[task.key])
        if task.reason and task.state in (State.FAILED, State.UNKNOWN, State.SKIPPED, State.ROLLED_BACK):
            return task.reason
        return task.content

    def _time(self, task: TaskRecord) -> str:
        if task.state is State.IN_PROGRESS and task.started_at is not None:
            return duration(self.now - task.started_at)
        return duration(task.duration_s) if task.state is not State.PENDING else ""

    # Moving

    def _go(self, index: int) -> None:
        index = max(0, min(index, len(self.rows) - 1)) if self.rows else 0
        for line in {self.cursor, index}:
            self.refresh_line(line)
        self.cursor = index
        self._keep_in_view()
        row = self.current
        self.post_message(self.Moved(row.key if row else None))

    def _keep_in_view(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, force=True)

    def on_resize(self) -> None:
        self.call_after_refresh(self._keep_in_view)

    def action_move(self, by: int) -> None:
        self.follows = False
        self._go(self.cursor + by)

    def action_page(self, pages: int) -> None:
        self.follows = False
        self._go(self.cursor + pages * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        self.follows = False
        self._go(len(self.rows) - 1 if end > 0 else 0)

    def action_fold(self, fold: bool | None = None) -> None:
        row = self.current
        if row is None:
            return
        folded = row.phase in self.folded
        if fold is None:
            fold = not folded
        (self.folded.add if fold else self.folded.discard)(row.phase)
        if fold != folded:
            self._rebuild()

    def action_unfold(self) -> None:
        """A task has nothing to unfold: there the key is the view's, which shows the log."""
        if self.current_task is not None:
            raise SkipAction
        self.action_fold(False)

    def action_fold_all(self) -> None:
        self.folded = set() if self.folded else set(self.reading.phases)
        self._rebuild()

    def action_jump_to_running(self) -> None:
        """To the task that matters now: the running one, else one that failed or is not confirmed."""
        self.follows = True
        for state in (State.IN_PROGRESS, State.FAILED, State.UNKNOWN, State.ROLLED_BACK):
            found = next((task.key for task in self.reading.tasks.values() if task.state is state), None)
            if found:
                self.select(found)
                return

    def action_choose(self) -> None:
        if self.current_task is None:
            self.action_fold()
        else:
            self._chosen()

    def on_click(self, event: events.Click) -> None:
        index = self.scroll_offset.y + event.y
        if index < len(self.rows):
            self.follows = False
            again = index == self.cursor and event.chain == 2
            self._go(index)
            if self.rows[index].key is None and event.chain == 1:
                self.action_fold()
            elif again:
                self._chosen()

    def on_focus(self) -> None:
        self.refresh_line(self.cursor)

    def on_blur(self) -> None:
        self.refresh_line(self.cursor)


def _fit(text: str, width: int) -> str:
    """Exactly `width` cells, with a mark where something was left out."""
    text = one_line(text)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(set_cell_size(text, max(0, width - 1)).rstrip() + "…", width)
