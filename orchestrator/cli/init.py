"""`orchestrate init`: a commented inventory and an empty store."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode, UsageError
from orchestrator.hosts.example import EXAMPLE_INVENTORY


@click.command(help="Write a commented hosts.yaml and an empty state.")
@click.argument("directory", type=click.Path(path_type=Path), default=Path())
@command_options
def init(cli: Cli, directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    inventory = directory / "hosts.yaml"
    if inventory.exists():
        raise UsageError(f"{inventory} exists already and is kept; remove it first to start over.")
    inventory.write_text(EXAMPLE_INVENTORY, encoding="utf-8")
    state = directory / "state.db"
    _empty_store(state)
    for path in (inventory, state):
        cli.out.line(f"wrote {path}")
    cli.out.line("Next: `orchestrate doctor`, then `orchestrate run deploy-ddtree`.")
    cli.out.document(ExitCode.DONE, {"files": [str(inventory), str(state)]})
    return ExitCode.DONE


def _empty_store(path: Path) -> None:
    from orchestrator.store.store import open_store

    open_store(f"sqlite:///{path.resolve()}").close()
