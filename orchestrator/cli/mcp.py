"""`orchestrate mcp`: the same operations for agents, over the Model Context Protocol."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode, UsageError
from orchestrator.store.store import open_store


@click.command(help="Serve agents over the Model Context Protocol (stdin and stdout) until the client leaves.")
@command_options
def mcp(cli: Cli) -> int:
    try:
        from orchestrator.mcp.desk import Desk
        from orchestrator.mcp.server import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"The MCP server needs the package mcp ({error}); `pip install mcp` adds it.") from error
    with open_store(cli.store_url) as store:
        desk = Desk(cli.hosts_file.resolve(), cli.store_url, store)
        desk.place()  # a wrong inventory is an error now, not at the first call
        serve(desk, debug=cli.debug)
    return ExitCode.DONE
