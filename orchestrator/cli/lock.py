"""`orchestrate lock`: who may change a host, and taking over from a dead run."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.errors import ExitCode
from orchestrator.store.leases import Lease
from orchestrator.store.process import who
from orchestrator.store.records import moment


@click.group(help="Who holds a host; steal the lock of a dead run.")
def lock() -> None:
    """Group of commands about leases."""


@lock.command("status", help="Who holds the host, since when, until when.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@command_options
def status(cli: Cli, host: str | None) -> int:
    name = cli.host(host).name
    with workplace(cli, read_only=True) as place:
        lease = place.store.leases.get(name)
    body = _body(lease)
    if lease is None:
        cli.out.line(f"nobody holds {name}")
    else:
        cli.out.line(
            f"{name} is held by {lease.owner} for run {lease.run_id} since {body['since']}, until {body['expires']}"
        )
    cli.out.document(ExitCode.DONE, body)
    return ExitCode.DONE


@lock.command("steal", help="Take the lock of a run that is dead; the reason is recorded.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--reason", required=True, help="Why the holder is known to be dead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command_options
def steal(cli: Cli, host: str | None, reason: str, yes: bool) -> int:
    name = cli.host(host).name
    with workplace(cli) as place:
        lease = place.store.leases.get(name)
        holder = f"{lease.owner} (run {lease.run_id})" if lease else "nobody"
        cli.confirm(f"Take the lock of {name} from {holder}?", yes=yes)
        place.store.leases.steal(name, who(), reason)
    cli.out.line(f"the lock of {name} was taken from {holder} and is free")
    cli.out.document(ExitCode.DONE, _body(lease))
    return ExitCode.DONE


def _body(lease: Lease | None) -> dict[str, Any]:
    if lease is None:
        return {"owner": None, "run_id": None, "since": None, "expires": None}
    return {
        "owner": lease.owner, "run_id": lease.run_id, "since": moment(lease.acquired_at), "expires": moment(lease.expires_at),
    }  # fmt: skip
