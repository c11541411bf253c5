"""The JSON documents of to-dos: reading what others wrote, with errors that name the item, and writing ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.graph.model import Priority, TodoItem
from orchestrator.graph.plan import around
from orchestrator.store.jsontext import clean_text
from orchestrator.store.todos import NewTodo

STATUSES = ("pending", "in_progress", "completed", "cancelled")
MAX_CONTENT = 20_000
MAX_ID = 200
_READ = {"id", "content", "priority", "status", "depends_on"}
_IGNORED = {"state", "reason", "owner", "updated_at", "bound", "activeForm"}  # shown in exports, not for others to set


def read_document(text: str) -> list[NewTodo]:
    """The items of `{"todos": [...]}` or a bare list. An item without id gets one from its content."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the to-do document is not whole JSON ({error}): nothing was imported") from error
    except RecursionError as error:
        raise UsageError("the to-do document is nested too deeply: nothing was imported") from error
    raw_items = document.get("todos") if isinstance(document, dict) else document
    if not isinstance(raw_items, list):
        raise UsageError('the to-do document must be {"todos": [...]} or a list: nothing was imported')
    items: list[NewTodo] = []
    seen: set[str] = set()
    for number, raw in enumerate(raw_items, 1):
        item = read_item(_with_id(raw, seen), f"to-do {number}")
        if item.id in seen:
            raise UsageError(f"to-do {number}: id {item.id} appears twice: nothing was imported")
        seen.add(item.id)
        items.append(item)
    return items


def read_item(raw: Any, where: str) -> NewTodo:
    """One checked item; UsageError says which item and field is wrong."""
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is {type(raw).__name__}, it must be an object")
    unknown = sorted(set(raw) - _READ - _IGNORED)
    if unknown:
        raise UsageError(f"{where} has an unknown field {unknown[0]!r}: known are {', '.join(sorted(_READ))}")
    content = _text(raw, "content", where, MAX_CONTENT)
    status = raw.get("status", "pending")
    if status not in STATUSES:
        raise UsageError(f"{where} has status {status!r}: choose {', '.join(STATUSES)}")
    priority = raw.get("priority", Priority.MEDIUM)
    if priority not in tuple(Priority):
        raise UsageError(f"{where} has priority {priority!r}: choose {', '.join(Priority)}")
    depends_on = raw.get("depends_on", [])
    if not isinstance(depends_on, list) or not all(isinstance(key, str) for key in depends_on):
        raise UsageError(f"{where}: depends_on must be a list of ids")
    return NewTodo(_text(raw, "id", where, MAX_ID), content, Priority(priority), status, tuple(depends_on))


def check_edges(items: Sequence[NewTodo], known: Iterable[TodoItem], elsewhere: Container[str]) -> None:
    """Refuses items with unknown dependencies or themselves as one, and circles among all to-dos together.

    elsewhere: what may be depended on although it is not on the list. What a known to-do waited for before may be gone.
    """
    before: dict[str, tuple[str, ...]] = {item.id: item.depends_on for item in known}
    edges = {**before, **{item.id: item.depends_on for item in items}}
    for item in items:
        for key in item.depends_on:
            if key == item.id:
                raise UsageError(f"to-do {item.id} depends on itself")
            if key not in edges and key not in elsewhere and key not in before.get(item.id, ()):
                raise UsageError(f"to-do {item.id} depends on {key}, which does not exist")
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        circle = around(list(reversed(error.args[1])))
        raise UsageError(f"to-dos depend on each other in a circle: {circle}") from error


def write_document(items: Iterable[TodoItem]) -> str:
    return json.dumps({"todos": [to_json(item) for item in items]}, indent=2) + "\n"


def to_json(item: TodoItem) -> dict[str, Any]:
    """An item as contract.md shows it."""
    return {
        "id": item.id, "content": item.content, "priority": str(item.priority), "status": item.status,
        "state": str(item.state), "reason": item.reason, "owner": item.owner, "depends_on": list(item.depends_on),
        "bound": item.bound,
    }  # fmt: skip


def new_id(content: str, taken: set[str]) -> str:
    """An id from the content, so that importing the same list twice adds nothing."""
    base = "t-" + hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    number, candidate = 1, base
    while candidate in taken:
        number += 1
        candidate = f"{base}-{number}"
    return candidate


def _with_id(raw: Any, seen: set[str]) -> Any:
    if isinstance(raw, Mapping) and "id" not in raw and isinstance(raw.get("content"), str):
        return {**raw, "id": new_id(raw["content"], seen)}
    return raw


def _text(raw: Mapping[str, Any], field: str, where: str, limit: int) -> str:
    value = raw.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where} needs a {field} (text)")
    if len(value) > limit:
        raise UsageError(f"{where} has a {field} of {len(value)} characters: at most {limit} are kept")
    return clean_text(value)
