"""`orchestrate plan`: what a graph would change, and why, without changing anything."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import operations
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.cli.settings import read_settings
from orchestrator.documents import encode, write_whole
from orchestrator.errors import ExitCode
from orchestrator.graph.preview import Preview
from orchestrator.graph.render import render

PICTURES = ("dot", "mermaid")
FORMS = ("table", "json", *PICTURES)


@click.command(help="What a graph would change, and why; writes a plan file for `run --plan`.")
@click.argument("graph")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the graph.")
@click.option("--reason", help="Why a decision is overridden (with --set decide=…).")
@click.option("--out", type=click.Path(path_type=Path), help="Plan file; default .run/plan-<id>.json.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    default="table",
    show_default=True,
    help="How to print it; json is the document of --json.",
)
@click.option("--diff", is_flag=True, help="Show the text of unit files that would change.")
@command_options
def plan(
    cli: Cli,
    graph: str,
    host: str | None,
    settings: tuple[str, ...],
    reason: str | None,
    out: Path | None,
    form: str,
    diff: bool,
) -> int:
    if form == "json":
        cli.out.json_mode = True
    values = read_settings(settings, reason)
    config = cli.host(host)
    spec = operations.build_graph(graph, config, values)
    with workplace(cli) as place:
        found = operations.plan_graph(place, spec, config, values)
    path = out or operations.plan_path(cli.home, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = operations.plan_document(found, spec)
    write_whole(path, encode(body))
    if form in PICTURES:
        picture = render(spec, form, {task.key: task.action for task in found.tasks})
        cli.out.line(picture.removesuffix("\n"))
        body["picture"] = picture
    else:
        _table(cli, found, diff)
    tell = cli.out.note if form in PICTURES else cli.out.line
    tell(f"saved as {path}; `orchestrate run {graph} --plan {path}` runs exactly this.")
    cli.out.document(ExitCode.DONE, {**body, "path": str(path)})
    return ExitCode.DONE


def _table(cli: Cli, found: Preview, diff: bool) -> None:
    cli.out.line(f"plan {found.plan_id} for {found.graph} on {found.host}")
    rows = [(task.key, task.priority, task.action, task.reason) for task in found.tasks]
    cli.out.table(("task", "priority", "state", "reason"), rows)
    for task in found.tasks:
        for change in task.changes:
            cli.out.line(f"  {task.key}: {change.kind} {change.target}: {change.detail}")
            if diff and change.diff:
                cli.out.line(change.diff)
