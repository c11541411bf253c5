"""`orchestrate tui`: the live view of a run."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.tui.launch import open_tui


@click.command(help="Live view of a run (default: the active or newest one); closing it never stops the run.")
@click.argument("run_id", metavar="[RUN]", required=False)
@command_options
def tui(cli: Cli, run_id: str | None) -> int:
    return open_tui(cli.store_url, run_id, cli.hosts_file, no_color=cli.out.no_color)
