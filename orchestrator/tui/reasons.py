"""What the graph's own interfaces say about a task and about to-dos, as sentences and items."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.graph.model import TodoItem
from orchestrator.store.store import Store


def explained(store: Store, run_id: str, task_key: str) -> Iterable[str]:
    return ()


def todos(store: Store) -> Iterable[TodoItem]:
    return ()
