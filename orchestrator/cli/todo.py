"""`orchestrate todo` and `orchestrate note`: the graph as plain to-dos, and what people decide."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.documents import write_whole
from orchestrator.errors import ExitCode, UsageError
from orchestrator.graph.model import TodoItem
from orchestrator.graph.todolist import TodoList
from orchestrator.hosts.secrets import Masker
from orchestrator.store.process import who
from orchestrator.store.store import open_store, open_to_read

RUN = click.option("--run", "run_id", metavar="RUN", help="Show the tasks of this run; default: the newest.")
OWNER = click.option("--owner", help="Who takes it; default: user and host.")


@contextlib.contextmanager
def todo_list(cli: Cli, run_id: str | None = None, *, read_only: bool = False) -> Iterator[TodoList]:
    with open_to_read(cli.store_url) if read_only else open_store(cli.store_url) as store:
        yield TodoList(store, run_id)


def item_json(item: TodoItem) -> dict[str, Any]:
    """A to-do as agents exchange it, with the graph's state beside the status."""
    return {
        "id": item.id, "content": item.content, "priority": item.priority, "status": item.status, "state": item.state,
        "owner": item.owner, "reason": item.reason, "depends_on": list(item.depends_on), "bound": item.bound,
        "updated_at": item.updated_at,
    }  # fmt: skip


def _show(cli: Cli, items: list[TodoItem]) -> int:
    cli.out.table(
        ("id", "priority", "status", "content"), ((i.id, i.priority.value, i.status, i.content) for i in items)
    )
    cli.out.document(ExitCode.DONE, {"todos": [item_json(item) for item in items]})
    return ExitCode.DONE


@click.group(help="The graph as plain to-dos, beside to-dos of your own.")
def todo() -> None:
    """Group of commands about to-dos."""


@todo.command("list", help="Tasks of the newest run, then the to-dos.")
@RUN
@command_options
def list_todos(cli: Cli, run_id: str | None) -> int:
    with todo_list(cli, run_id, read_only=True) as todos:
        return _show(cli, todos.items())


@todo.command("ready", help="What could be started now, the most urgent first.")
@RUN
@command_options
def ready(cli: Cli, run_id: str | None) -> int:
    with todo_list(cli, run_id, read_only=True) as todos:
        return _show(cli, todos.ready())


@todo.command("add", help="Add a to-do.")
@click.argument("content")
@click.option("--priority", type=click.Choice(["high", "medium", "low"]), default="medium", show_default=True)
@click.option("--after", "depends_on", multiple=True, metavar="ID", help="It waits for this to-do or task.")
@command_options
def add(cli: Cli, content: str, priority: str, depends_on: tuple[str, ...]) -> int:
    with todo_list(cli) as todos:
        return _show(cli, [todos.add(Masker().mask(content), priority, who(), depends_on)])


@todo.command("set", help="Set the status of a to-do; a task of a run is completed by its evidence only.")
@click.argument("item_id", metavar="ID")
@click.argument("status", type=click.Choice(["pending", "in_progress", "completed", "cancelled"]))
@command_options
def set_status(cli: Cli, item_id: str, status: str) -> int:
    with todo_list(cli) as todos:
        return _show(cli, [todos.set_status(item_id, status, who())])


@todo.command("rm", help="Remove a to-do.")
@click.argument("item_id", metavar="ID")
@command_options
def remove(cli: Cli, item_id: str) -> int:
    with todo_list(cli) as todos:
        todos.remove(item_id, who())
        return _show(cli, todos.items())


@todo.command("claim", help="Take a to-do; nobody else can while the claim lasts.")
@click.argument("item_id", metavar="ID")
@OWNER
@command_options
def claim(cli: Cli, item_id: str, owner: str | None) -> int:
    with todo_list(cli) as todos:
        return _show(cli, [todos.claim(item_id, owner or who())])


@todo.command("next", help="Claim the most urgent to-do that is ready.")
@OWNER
@command_options
def next_todo(cli: Cli, owner: str | None) -> int:
    with todo_list(cli) as todos:
        found = todos.next(owner or who())
        return _show(cli, [found] if found else [])


@todo.command("export", help="All to-dos as a JSON document on stdout, or in FILE.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@command_options
def export(cli: Cli, file: Path | None) -> int:
    with todo_list(cli, read_only=True) as todos:
        text = todos.export()
    if file is not None:
        write_whole(file, text)
        cli.out.line(f"wrote {file}")
    elif not cli.out.json_mode:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    cli.out.document(ExitCode.DONE, {"todos": json.loads(text)["todos"]})
    return ExitCode.DONE


@todo.command("import", help="Merge a JSON document of to-dos from FILE (- for stdin), all or nothing.")
@click.argument("file")
@command_options
def import_todos(cli: Cli, file: str) -> int:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); give a JSON document of to-dos.") from error
    with todo_list(cli) as todos:
        count = todos.load(text, who())
        items = todos.items()
    cli.out.line(f"{count} to-dos imported")
    cli.out.document(ExitCode.DONE, {"imported": count, "todos": [item_json(item) for item in items]})
    return ExitCode.DONE


@click.group(help="Record a decision, risk or assumption.")
def note() -> None:
    """Group of commands about notes."""


@note.command("add", help="Add a note; the roadmap shows it.")
@click.argument("text")
@click.option("--kind", type=click.Choice(["decision", "risk", "assumption"]), required=True)
@click.option("--task", "task_key", metavar="KEY", help="The task it is about.")
@click.option("--author", help="Who says so; default: user and host.")
@command_options
def add_note(cli: Cli, text: str, kind: str, task_key: str | None, author: str | None) -> int:
    with open_store(cli.store_url) as store:
        kept = store.notes.add(kind, Masker().mask(text), author or who(), task_key)
    cli.out.line(f"noted ({kept.kind}): {kept.text}")
    cli.out.document(ExitCode.DONE, {"id": kept.id, "kind": kept.kind, "author": kept.author})
    return ExitCode.DONE


@note.command("list", help="All notes, oldest first.")
@command_options
def list_notes(cli: Cli) -> int:
    with open_to_read(cli.store_url) as store:
        notes = store.notes.list()
    cli.out.table(("kind", "author", "task", "text"), ((n.kind, n.author, n.task_key or "", n.text) for n in notes))
    rows = [{"id": n.id, "kind": n.kind, "author": n.author, "task": n.task_key, "text": n.text} for n in notes]
    cli.out.document(ExitCode.DONE, {"notes": rows})
    return ExitCode.DONE
