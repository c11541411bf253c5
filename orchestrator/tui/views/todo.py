"""The to-do view: what people and agents wrote; add, edit, claim, finish, drop."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from orchestrator.graph.model import Priority, TodoItem
from orchestrator.tui import reasons
from orchestrator.tui.actions import Field
from orchestrator.tui.blocks import Page, Span
from orchestrator.tui.dialogs import FormScreen
from orchestrator.tui.feed import Lists
from orchestrator.tui.look import Look
from orchestrator.tui.pages.todo import COLUMNS, todo_rows
from orchestrator.tui.views.base import View
from orchestrator.tui.widgets.blockview import BlockView
from orchestrator.tui.widgets.rows import Rows
from orchestrator.tui.words import Tone, date_time

PRIORITIES = tuple(priority.value for priority in Priority)


class TodoView(View):
    """Changes go through the graph's own to-do list, as `orchestrate todo` does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "add", "Add"),
        Binding("e", "edit", "Edit"),
        Binding("c", "claim", "Claim"),
        Binding("f", "finish", "Finish"),
        Binding("u", "reopen", "Reopen", show=False),
        Binding("D", "drop", "Cancel it", show=False),
    ]

    class Change(Message):
        """A change of the to-do list, to be made outside the screen's thread."""

        def __init__(self, change: reasons.TodoChange, said: str) -> None:
            self.change, self.said = change, said
            super().__init__()

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(look, id=id)
        self.table = Rows(look, COLUMNS, id="todos")
        self.page = BlockView(look, id="todo-page")
        self.todos: tuple[TodoItem, ...] = ()

    def compose(self) -> ComposeResult:
        yield self.table
        yield self.page

    def show_lists(self, lists: Lists, now: float) -> None:
        self.todos = lists.todos
        self.table.show([item.id for item in self.todos], todo_rows(self.todos))
        self._show_item()

    @property
    def item(self) -> TodoItem | None:
        return next((item for item in self.todos if item.id == self.table.current), None)

    @on(Rows.RowHighlighted)
    def _show_item(self) -> None:
        page, item = Page(), self.item
        if item is None:
            page.say("No to-do yet. a adds one, as `orchestrate todo add` does.")
        else:
            page.heading(item.id)
            page.say(item.content)
            page.pairs(
                ("status", item.status.replace("_", " ")),
                ("priority", Span(item.priority.value, Tone.STRONG)),
                ("owner", item.owner or "nobody"),
                ("waits for", ", ".join(item.depends_on) or "nothing"),
                ("changed", date_time(item.updated_at.timestamp()) if item.updated_at else "–"),
            )
        self.page.show(page.blocks)

    def action_add(self) -> None:
        fields = (Field("content", "what is to be done"), Field("priority", "priority", "medium", PRIORITIES))

        def add(answers: dict[str, str] | None) -> None:
            if answers:
                self.post_message(self.Change(reasons.add(answers["content"], answers["priority"]), "added"))

        self.app.push_screen(FormScreen("Add a to-do", fields, "Add"), add)

    def action_edit(self) -> None:
        item = self.item
        if item is None:
            return
        fields = (
            Field("content", "what is to be done", item.content),
            Field("priority", "priority", item.priority.value, PRIORITIES),
        )

        def edit(answers: dict[str, str] | None) -> None:
            if answers:
                change = reasons.edit(item, answers["content"], answers["priority"])
                self.post_message(self.Change(change, f"{item.id} changed"))

        self.app.push_screen(FormScreen(f"Edit {item.id}", fields, "Change"), edit)

    def action_claim(self) -> None:
        if self.item is not None:
            self.post_message(self.Change(reasons.claim(self.item.id), f"{self.item.id} is yours"))

    def action_finish(self) -> None:
        self._set("completed")

    def action_reopen(self) -> None:
        self._set("pending")

    def action_drop(self) -> None:
        self._set("cancelled")

    def _set(self, status: str) -> None:
        if self.item is not None:
            self.post_message(self.Change(reasons.set_status(self.item.id, status), f"{self.item.id}: {status}"))

    def dress(self, look: Look) -> None:
        super().dress(look)
        self.table.dress(look)
        self.page.look = look
        self.page.show(self.page.blocks, anew=True)

    def focus_first(self) -> None:
        self.screen.set_focus(self.table)
