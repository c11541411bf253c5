"""The tools for to-dos and notes."""

from __future__ import annotations

from typing import Any

from orchestrator.cli.todo import item_json
from orchestrator.errors import UsageError
from orchestrator.graph.model import TodoItem
from orchestrator.graph.todolist import TodoList
from orchestrator.mcp.arguments import NoteArguments, TodoArguments
from orchestrator.mcp.desk import Desk
from orchestrator.store.process import who


def todo(desk: Desk, given: TodoArguments) -> dict[str, Any]:
    if given.content is not None:
        given = given.model_copy(update={"content": desk.masker.mask(given.content)})
    return {"todos": [item_json(item) for item in _todos(TodoList(desk.store, given.run_id), given)]}


def _todos(todos: TodoList, given: TodoArguments) -> list[TodoItem]:
    by = given.owner or who()
    match given.action:
        case "list":
            return todos.items()
        case "ready":
            return todos.ready()
        case "add":
            return [todos.add(_needed(given, "content"), given.priority, by, tuple(given.depends_on))]
        case "set":
            return [todos.set_status(_needed(given, "id"), _needed(given, "status"), by)]
        case "claim":
            return [todos.claim(_needed(given, "id"), by)]
        case "next":
            found = todos.next(by)
            return [found] if found else []


def _needed(given: TodoArguments, field: str) -> str:
    value = getattr(given, field)
    if value is None:
        raise UsageError(f"todo: the action {given.action} needs {field}.")
    return str(value)


def note(desk: Desk, given: NoteArguments) -> dict[str, Any]:
    kept = desk.store.notes.add(given.kind, desk.masker.mask(given.text), given.author or who(), given.task)
    return {"id": kept.id, "kind": kept.kind, "author": kept.author, "task": kept.task_key}
