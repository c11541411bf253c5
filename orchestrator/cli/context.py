"""The options that every command takes, and what commands build from them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.output import Output
from orchestrator.errors import UsageError

if TYPE_CHECKING:  # commands that only read the store start without the inventory's parser
    from orchestrator.hosts.inventory import HostConfig, Inventory

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Cli:
    """One invocation: where the inventory and the store are, and how to print."""

    out: Output
    hosts_file: Path
    state_url: str | None
    debug: bool

    @functools.cached_property
    def inventory(self) -> Inventory:
        from orchestrator.hosts.load import load_inventory

        return load_inventory(self.hosts_file)

    @property
    def home(self) -> Path:
        """The folder of hosts.yaml: state, embedded hosts, run files and the roadmap live beside it."""
        return self.hosts_file.resolve().parent

    @property
    def store_url(self) -> str:
        return self.state_url or f"sqlite:///{self.home / 'state.db'}"

    def host(self, name: str | None) -> HostConfig:
        from orchestrator.hosts.load import select_host

        return select_host(self.inventory, name)

    def confirm(self, question: str, *, yes: bool, why: str = "This changes a host") -> None:
        """Ask before a host is changed (or what `why` says); without a terminal and without --yes, refuse (exit 2)."""
        if yes:
            return
        if not self.out.interactive:
            raise UsageError(f"{why} and nobody can be asked here; add --yes to go ahead.")
        if not click.confirm(question, default=False, err=True):
            raise UsageError("Nothing was changed: the question was answered with no.")


def command_options(function: Function) -> Function:
    """Add --debug, --json, --state, --hosts and --no-color, and hand the command a Cli as first argument."""

    @functools.wraps(function)
    def wrapped(
        *args: Any, json_mode: bool, no_color: bool, state: str | None, hosts: Path, debug: bool, **kw: Any
    ) -> Any:
        cli = Cli(Output(json_mode=json_mode, no_color=no_color), hosts, state, debug)
        click.get_current_context().obj = cli
        return function(cli, *args, **kw)

    decorated: Any = wrapped
    for option in (
        click.option("--debug", is_flag=True, help="Show a traceback with an error."),
        click.option("--no-color", is_flag=True, help="Plain text without colours."),
        click.option("--hosts", type=click.Path(path_type=Path), default=Path("hosts.yaml"), help="Inventory file."),
        click.option(
            "--state",
            metavar="URL",
            envvar="ORCHESTRATE_STATE",
            help="Store; default sqlite:///state.db beside the inventory.",
        ),
        click.option("--json", "json_mode", is_flag=True, help="One JSON document on stdout."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
