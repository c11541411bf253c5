"""What the graph's own interfaces say about a task, about to-dos, and in the roadmap."""

from __future__ import annotations

import json
from collections.abc import Callable

from orchestrator.errors import OrchestrateError
from orchestrator.graph.explain import explain
from orchestrator.graph.model import TodoItem
from orchestrator.graph.todolist import TodoList
from orchestrator.store.jsontext import clean_text
from orchestrator.store.process import who
from orchestrator.store.store import Store, open_store
from orchestrator.tui.words import one_line

TodoChange = Callable[[TodoList], object]


def explained(store: Store, run_id: str, task_key: str) -> list[str]:
    """The verdict of `orchestrate explain` and its reasons, one sentence each."""
    found = explain(store, run_id, task_key)
    return [found.verdict, *(f"{reason.kind}: {reason.text}" for reason in found.reasons)]


def todos(store: Store) -> list[TodoItem]:
    """To-dos that people and agents wrote; the tasks of runs are on the run view."""
    return [item for item in TodoList(store).items() if not item.bound]


def roadmap(store: Store) -> tuple[str, str]:
    """The document that `orchestrate roadmap` writes and "", or "" and why there is none."""
    from orchestrator.report.roadmap import render
    from orchestrator.report.roadmap_view import roadmap_view

    try:
        return clean_text(render(roadmap_view(store, None))), ""
    except (OrchestrateError, LookupError, ValueError) as error:
        return "", one_line(error)


def change_todos(url: str, change: TodoChange) -> None:
    """Opens the store for writing, only as long as the change takes."""
    with open_store(url) as store:
        change(TodoList(store))


def add(content: str, priority: str) -> TodoChange:
    return lambda todos: todos.add(content, priority, who())


def set_status(item_id: str, status: str) -> TodoChange:
    return lambda todos: todos.set_status(item_id, status, who())


def claim(item_id: str) -> TodoChange:
    return lambda todos: todos.claim(item_id, who())


def remove(item_id: str) -> TodoChange:
    return lambda todos: todos.remove(item_id, who())


def edit(item: TodoItem, content: str, priority: str) -> TodoChange:
    """Through the import, which merges by id and checks the document."""
    document = {
        "id": item.id, "content": content, "priority": priority, "status": item.status,
        "depends_on": list(item.depends_on),
    }  # fmt: skip
    return lambda todos: todos.load(json.dumps({"todos": [document]}), who())
