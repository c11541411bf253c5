"""`orchestrate lock`: who may change a host, and taking over from a dead run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.errors import ExitCode, OrchestrateError
from orchestrator.hosts.lock import Holder, lock_status
from orchestrator.hosts.lock import steal as steal_on_host
from orchestrator.hosts.session import open_session
from orchestrator.release.store import ReleaseStore
from orchestrator.store.leases import Lease
from orchestrator.store.process import who
from orchestrator.store.records import moment
from orchestrator.transport.embedded import embedded_folder


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
        with _on_host(cli, name) as releases:
            body = _body_of_host(lock_status(releases) if releases else None)
    if body["owner"] is None:
        cli.out.line(f"nobody holds {name}")
    else:
        cli.out.line(
            f"{name} is held by {body['owner']} for run {body['run_id']} since {body['since']}, until {body['expires']}"
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
    with workplace(cli) as place, _on_host(cli, name) as releases:
        reason = place.masker.mask(reason)
        lease = place.store.leases.get(name)
        there = lock_status(releases) if releases else None
        body = _body(lease) if lease or not there else _body_of_host(there)
        holder = f"{body['owner']} (run {body['run_id']})" if body["owner"] else "nobody"
        cli.confirm(f"Take the lock of {name} from {holder}?", yes=yes)
        if lease is not None or there is None:
            place.store.leases.steal(name, who(), reason)
        if releases and there:
            steal_on_host(releases, "", reason, ttl_s=0, only_from=there.run_id)
            data = {"host": name, "from": there.owner, "run": there.run_id, "by": who(), "reason": reason}
            place.store.events.append(None, None, "lock.stolen", data)
    cli.out.line(f"the lock of {name} was taken from {holder} and is free")
    cli.out.document(ExitCode.DONE, body)
    return ExitCode.DONE


@contextlib.contextmanager
def _on_host(cli: Cli, name: str) -> Iterator[ReleaseStore | None]:
    """Where the host keeps its lock; None, with a note, when it cannot be asked. Nothing is set up for this."""
    config = cli.host(name)
    with contextlib.ExitStack() as stack:
        found = None
        if config.transport != "embedded" or embedded_folder(cli.home, name).exists():
            try:
                found = stack.enter_context(open_session(config, cli.home)).releases
            except OrchestrateError as error:
                cli.out.note(f"  the lock on the host itself is not known: {error}")
        yield found


def _body(lease: Lease | None) -> dict[str, Any]:
    if lease is None:
        return {"owner": None, "run_id": None, "since": None, "expires": None}
    return {
        "owner": lease.owner, "run_id": lease.run_id, "since": moment(lease.acquired_at), "expires": moment(lease.expires_at),
    }  # fmt: skip


def _body_of_host(holder: Holder | None) -> dict[str, Any]:
    if holder is None:
        return _body(None)
    return {"owner": holder.owner, "run_id": holder.run_id, "since": holder.since, "expires": holder.expires}
