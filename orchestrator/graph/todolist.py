"""Runs' tasks and people's to-dos as one list, in the shape that agents exchange."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from orchestrator.errors import UsageError
from orchestrator.graph.model import State, TodoItem
from orchestrator.graph.tododocument import STATUSES, check_edges, new_id, read_document, read_item, write_document
from orchestrator.store.records import RunRecord, TaskRecord, moment
from orchestrator.store.store import Store
from orchestrator.store.todos import CLAIM_TTL_S, NewTodo, Todo

STATUS_OF_STATE = {
    State.PENDING: "pending",
    State.IN_PROGRESS: "in_progress",
    State.UNKNOWN: "in_progress",
    State.COMPLETED: "completed",
    State.FAILED: "pending",
    State.ROLLED_BACK: "pending",
    State.CANCELLED: "cancelled",
    State.SKIPPED: "cancelled",
}
_STATE_OF_STATUS = {
    "pending": State.PENDING,
    "in_progress": State.IN_PROGRESS,
    "completed": State.COMPLETED,
    "cancelled": State.CANCELLED,
}
_OVER = ("completed", "cancelled")


class TodoList:
    """The newest run's tasks (id `RUN:KEY`) and the to-dos of the store. Bound items belong to the runner."""

    def __init__(self, store: Store, run_id: str | None = None) -> None:
        self.store = store
        self._run_id = run_id

    def items(self) -> list[TodoItem]:
        with self.store.snapshot():
            run = self._run()
            bound = [] if run is None else [bound_item(task) for task in self.store.tasks.list(run.id)]
            return bound + [_free_item(todo) for todo in self.store.todos.list()]

    def add(self, content: str, priority: str, by: str, depends_on: tuple[str, ...] = ()) -> TodoItem:
        raw = {"content": content, "priority": priority, "status": "pending", "depends_on": list(depends_on)}
        with self.store.transaction():  # whoever adds the same text meanwhile must not get the same id
            known = self.items()
            item = read_item({**raw, "id": new_id(content, {item.id for item in known})}, "this to-do")
            check_edges([item], known, self._tasks_elsewhere([item]))
            self.store.todos.merge([item], by)
        return self._get(item.id)

    def set_status(self, item_id: str, status: str, by: str) -> TodoItem:
        """Changes one item. A bound task can only be cancelled or reopened by hand, never declared done."""
        if status not in STATUSES:
            raise UsageError(f"status {status!r}: choose {', '.join(STATUSES)}")
        item = self._get(item_id)
        if item.bound:
            self._set_bound(item, status, by)
        else:
            self.store.todos.set_status(item_id, status, by)
        return self._get(item_id)

    def remove(self, item_id: str, by: str) -> None:
        if self._get(item_id).bound:
            raise UsageError(f"{item_id} is a task of a run, which is kept as its record: it cannot be removed")
        self.store.todos.remove(item_id, by)

    def ready(self) -> list[TodoItem]:
        """What could be started now, the most urgent first."""
        items = self.items()
        open_ = self._open(items)
        urgency = {"high": 0, "medium": 1, "low": 2}
        free = {todo.id: todo for todo in self.store.todos.list()}
        now = self.store.clock()
        ready = [
            item
            for item in items
            if (item.status == "pending" or (item.id in free and _lapsed(free[item.id], now)))
            and open_.isdisjoint(item.depends_on)
        ]
        return sorted(ready, key=lambda item: urgency[item.priority])

    def claim(self, item_id: str, owner: str, ttl_s: float = CLAIM_TTL_S) -> TodoItem:
        item = self._get(item_id)
        if item.bound:
            raise UsageError(f"{item_id} is a task of a run: `orchestrate run --resume` works on it")
        open_ = self._open(self.items())
        missing = [key for key in item.depends_on if key in open_]
        if missing:
            raise UsageError(f"to-do {item_id} waits for {', '.join(missing)}")
        self.store.todos.claim(item_id, owner, ttl_s)
        return self._get(item_id)

    def next(self, owner: str, ttl_s: float = CLAIM_TTL_S) -> TodoItem | None:
        """Claims the most urgent ready to-do in one transaction; None when there is none."""
        with self.store.transaction():
            for item in self.ready():
                if not item.bound:
                    return self.claim(item.id, owner, ttl_s)
        return None

    def export(self) -> str:
        """The whole list as a JSON document that `load` reads back."""
        return write_document(self.items())

    def load(self, text: str, by: str) -> int:
        """Merges a JSON document, all or nothing; returns how many free to-dos it brought."""
        with self.store.transaction():
            known = {item.id: item for item in self.items()}
            wanted = read_document(text)
            free = [item for item in wanted if item.id not in known or not known[item.id].bound]
            check_edges(free, known.values(), self._tasks_elsewhere(free))
            for item in wanted:
                bound = known.get(item.id)
                if bound is not None and bound.bound and bound.status != item.status:
                    self._set_bound(bound, item.status, by)
            self.store.todos.merge(free, by)
        return len(free)

    def _set_bound(self, item: TodoItem, status: str, by: str) -> None:
        run_id, _, key = item.id.partition(":")
        task = self.store.tasks.get(run_id, key)
        if status == "cancelled" and task.why_not_skipped:
            raise UsageError(f"{task.why_not_skipped}; resume run {run_id}, which finds out what is true")
        if status == "cancelled" and task.state is State.PENDING:
            state, reason = State.SKIPPED, f"cancelled by {by}"
        elif status == "pending" and task.state is State.SKIPPED:
            state, reason = State.PENDING, f"reopened by {by}"
        else:
            raise UsageError(
                f"{item.id} is a task of a run and {task.state}: it cannot be set to {status} by hand;"
                " only its own evidence completes it"
            )
        with self.store.transaction():
            self.store.tasks.change(task, state, reason=reason)
            self.store.events.append(run_id, key, f"task.{state}", {"reason": reason})

    def _open(self, items: Sequence[TodoItem]) -> set[str]:
        """Ids for which others have to wait: on the list, or tasks of other runs. What is gone holds up nothing."""
        elsewhere = self._tasks_elsewhere(items)
        statuses = {**{item.id: item.status for item in items}, **elsewhere}
        return {key for key, status in statuses.items() if status not in _OVER}

    def _tasks_elsewhere(self, items: Sequence[TodoItem | NewTodo]) -> dict[str, str]:
        """The status of each task of another run than the one shown on which an item depends, by its id."""
        shown = self._run()
        found = {}
        for key in {key for item in items for key in item.depends_on if ":" in key}:
            run_id, _, task_key = key.partition(":")
            if shown is None or run_id != shown.id:
                with contextlib.suppress(UsageError):  # no such task, or its run was forgotten
                    found[key] = STATUS_OF_STATE[self.store.tasks.get(run_id, task_key).state]
        return found

    def _get(self, item_id: str) -> TodoItem:
        for item in self.items():
            if item.id == item_id:
                return item
        raise UsageError(f"there is no to-do {item_id}: `orchestrate todo list` shows them")

    def _run(self) -> RunRecord | None:
        return self.store.runs.get(self._run_id) if self._run_id else self.store.runs.latest()


def bound_item(task: TaskRecord) -> TodoItem:
    """A task of a run as a to-do."""
    return TodoItem(
        id=f"{task.run_id}:{task.key}", content=task.content, priority=task.priority,
        status=STATUS_OF_STATE[task.state], state=task.state, owner=task.claimed_by,
        updated_at=moment(task.finished_at or task.started_at), reason=task.reason,
        depends_on=tuple(f"{task.run_id}:{key}" for key in task.depends_on), bound=True,
    )  # fmt: skip


def _free_item(todo: Todo) -> TodoItem:
    return TodoItem(
        id=todo.id, content=todo.content, priority=todo.priority, status=todo.status,
        state=_STATE_OF_STATUS[todo.status], owner=todo.owner, updated_at=moment(todo.updated_at),
        depends_on=todo.depends_on,
    )  # fmt: skip


def _lapsed(todo: Todo, now: float) -> bool:
    return todo.status == "in_progress" and todo.claimed_until is not None and not todo.claimed(now)
