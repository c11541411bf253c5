"""`orchestrate tui`: the live view of a run."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli, command_options


@click.command(help="Live view of a run (default: the active or newest one); closing it never stops the run.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--plain", is_flag=True, help="The same information as lines, for a screen reader or a pipe.")
@click.option("--web", is_flag=True, help="The same in a browser on this machine, behind a token that works once.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of --web on loopback; default: a free one.")
@command_options
def tui(cli: Cli, run_id: str | None, plain: bool, web: bool, port: int | None) -> int:
    from orchestrator.tui.launch import open_plain, open_tui

    if web:
        from orchestrator.tui.web import serve

        return serve(cli.store_url, run_id, cli.hosts_file.resolve(), cli.out.line, port or 0)
    if plain:
        return open_plain(cli.store_url, run_id)
    return open_tui(cli.store_url, run_id, cli.hosts_file, no_color=cli.out.no_color)
