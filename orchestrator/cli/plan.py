"""`orchestrate plan`: what a graph would change, and why, without changing anything."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import operations
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import read_settings, workplace
from orchestrator.documents import encode
from orchestrator.errors import ExitCode


@click.command(help="What a graph would change, and why; writes a plan file for `run --plan`.")
@click.argument("graph")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the graph.")
@click.option("--reason", help="Why a decision is overridden (with --set decide=…).")
@click.option("--out", type=click.Path(path_type=Path), help="Plan file; default .run/plan-<id>.json.")
@click.option("--diff", is_flag=True, help="Show the text of unit files that would change.")
@command_options
def plan(
    cli: Cli, graph: str, host: str | None, settings: tuple[str, ...], reason: str | None, out: Path | None, diff: bool
) -> int:
    values = read_settings(settings, reason)
    config = cli.host(host)
    spec = operations.build_graph(graph, config, values)
    with workplace(cli) as place:
        found = operations.plan_graph(place, spec, config, values)
    path = out or operations.plan_path(cli.home, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = operations.plan_document(found, spec)
    path.write_text(encode(body), encoding="utf-8")
    cli.out.line(f"plan {found.plan_id} for {graph} on {config.name}")
    rows = [(task.key, task.priority, task.action, task.reason) for task in found.tasks]
    cli.out.table(("task", "priority", "state", "reason"), rows)
    for task in found.tasks:
        for change in task.changes:
            cli.out.line(f"  {task.key}: {change.kind} {change.target}: {change.detail}")
            if diff and change.diff:
                cli.out.line(change.diff)
    cli.out.line(f"saved as {path}; `orchestrate run {graph} --plan {path}` runs exactly this.")
    cli.out.document(ExitCode.DONE, {**body, "path": str(path)})
    return ExitCode.DONE
