"""`orchestrate inspect`: engines, models and hardware as they are, and what follows; changes nothing."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import click

from orchestrator import operations
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.output import Output
from orchestrator.cli.place import workplace
from orchestrator.cli.progress import RunProgress
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode, UsageError
from orchestrator.graph.runner import RunResult
from orchestrator.hosts.inventory import HostConfig, Inventory
from orchestrator.store.store import open_store

PARTS = (
    "subject",
    "sglang",
    "vllm",
    "model",
    "hardware",
    "other_engines",
    "setting",
    "budgets",
    "predictions",
    "not_seen",
)


@click.command(help="Engines and models as they are on a host (or in a folder); changes nothing.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--path", metavar="DIR", help="A folder instead of a host: site-packages, an unpacked wheel, a model.")
@command_options
def inspect(cli: Cli, host: str | None, path: str | None) -> int:
    if path is not None:
        if host is not None:
            raise UsageError("--host looks at a host and --path at a folder; give one of them.")
        result, body = folder_inspection(path)
    else:
        config = cli.host(host)
        with workplace(cli) as place:
            result, body = inspection(place, config, None, cli.out)
    code = ExitCode(result.exit_code)
    error = None if code in SUCCESS else result.reason
    text = body.pop("text")
    if text:
        cli.out.line(text.rstrip())
    cli.out.document(code, body, error)
    if error:
        cli.out.error(error)
    return code


def folder_inspection(path: str) -> tuple[RunResult, dict[str, Any]]:
    """As `inspection` of a folder. It belongs to no host and no inventory, so its run is kept in a store that is removed."""
    nowhere = HostConfig(name="folder", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")
    with tempfile.TemporaryDirectory(prefix="orchestrate-") as home:
        store = open_store(f"sqlite:///{home}/state.db")
        try:
            inventory = Inventory(hosts={nowhere.name: nowhere}, path=Path(home) / "hosts.yaml")
            return _inspection(operations.Workplace(Path(home), inventory, store), nowhere, {"path": path})
        finally:
            store.close()


def inspection(
    place: operations.Workplace, config: HostConfig, path: str | None, out: Output | None = None
) -> tuple[RunResult, dict[str, Any]]:
    """Run the graph `inspect`, with progress on `out`; its result, and the document with `text` for people beside."""
    return folder_inspection(path) if path is not None else _inspection(place, config, {}, out)


def _inspection(
    place: operations.Workplace, config: HostConfig, options: dict[str, str], out: Output | None = None
) -> tuple[RunResult, dict[str, Any]]:
    spec = operations.build_graph("inspect", config, {}, options)
    with contextlib.ExitStack() as stack:
        contents = {task.key: task.content for task in spec.tasks}
        watch = stack.enter_context(RunProgress(contents, out.progress_console)) if out else None
        result = operations.run_graph(place, spec, config, {}, on_event=watch)
    outputs = {task.key: task.output or {} for task in result.tasks}
    body: dict[str, Any] = {}
    for output in outputs.values():
        body |= {key: value for key, value in output.items() if key in PARTS}
    body["risks"] = outputs.get("map-risks", outputs.get("inspect-folder", {})).get("risks", [])
    last = outputs.get("recommend", outputs.get("inspect-folder", {}))
    body["recommendation"] = last.get("recommendation")
    body["text"] = last.get("text", "")
    return result, body
