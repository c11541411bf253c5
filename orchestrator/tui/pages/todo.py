"""To-dos that people and agents wrote, beside the tasks of the run."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.graph.model import Priority, State, TodoItem
from orchestrator.tui.blocks import Block, Page, Span
from orchestrator.tui.words import SIGNS, Tone

COLUMNS = ("", "id", "priority", "status", "owner", "to-do")  # the one that may be long stands last
_STATES = {
    "pending": State.PENDING,
    "in_progress": State.IN_PROGRESS,
    "completed": State.COMPLETED,
    "cancelled": State.CANCELLED,
}


def todo_rows(todos: Sequence[TodoItem]) -> list[list[Span]]:
    return [_row(item) for item in todos]


def todo_page(todos: Sequence[TodoItem]) -> list[Block]:
    page = Page()
    page.heading("To-dos")
    if todos:
        page.table(COLUMNS, todo_rows(todos))
    else:
        page.say("none; press a to write one, or use `orchestrate todo add`")
    return page.blocks


def _row(item: TodoItem) -> list[Span]:
    sign, tone = SIGNS[_STATES.get(item.status, item.state)]
    urgent = Tone.STRONG if item.priority is Priority.HIGH else Tone.PLAIN
    over = item.status in ("completed", "cancelled")
    return [
        Span(sign, tone), Span(item.id, Tone.DIM), Span(item.priority.value, urgent),
        Span(item.status.replace("_", " "), tone), Span(item.owner or ""),
        Span(item.content, Tone.DIM if over else Tone.PLAIN),
    ]  # fmt: skip
