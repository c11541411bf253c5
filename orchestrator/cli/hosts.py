"""`orchestrate hosts`: the inventory, reachability, host keys, and cleaning up."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.errors import ExitCode, OrchestrateError
from orchestrator.hosts.check import check_host
from orchestrator.hosts.inventory import HostConfig


@click.group(help="List, check, trust, start and clean hosts.")
def hosts() -> None:
    """Group of commands about the inventory."""


def _row(config: HostConfig) -> dict[str, Any]:
    where = "this machine (loopback SSH, not systemd)" if config.transport == "embedded" else config.address
    model = config.model if isinstance(config.model, str) else config.model.target
    return {
        "name": config.name, "transport": config.transport, "address": where, "engine": config.engine,
        "service": config.service.unit, "driver": config.service.driver, "port": config.service.port, "model": model,
    }  # fmt: skip


@hosts.command("list", help="The hosts of the inventory.")
@command_options
def list_hosts(cli: Cli) -> int:
    rows = [_row(config) for config in cli.inventory.hosts.values()]
    columns = ("name", "address", "engine", "service", "driver", "port", "model")
    cli.out.table(columns, ([row[column] for column in columns] for row in rows))
    cli.out.document(ExitCode.DONE, {"hosts": rows, "groups": dict(cli.inventory.groups)})
    return ExitCode.DONE


@hosts.command("check", help="Reachability, key, sudo, GPU and disk of a host.")
@click.argument("name", required=False)
@command_options
def check(cli: Cli, name: str | None) -> int:
    chosen = [cli.host(name)] if name else list(cli.inventory.hosts.values())
    found = [check_host(config, cli.home) for config in chosen]
    for host in found:
        cli.out.line(f"{host['name']}: {'ok' if host['ok'] else 'NOT OK'}")
        for item in host["checks"]:
            cli.out.line(f"  {'ok ' if item['ok'] else 'BAD'}  {item['name']:<14} {item['detail']}")
    first = next((host for host in found if not host["ok"]), None)
    code = ExitCode(first["exit_code"]) if first else ExitCode.DONE
    error = f"{first['name']}: {first['error']}" if first else None
    cli.out.document(code, {"hosts": found}, error)
    if error:
        cli.out.error(error)
    return code


@hosts.command("start", help="Start the embedded host and its linear service (provisions it on first use).")
@click.argument("name", required=False)
@command_options
def start(cli: Cli, name: str | None) -> int:
    from orchestrator.hosts.first_use import is_embedded_cpu, provision_services
    from orchestrator.hosts.guard import held_for

    config = cli.host(name)
    with workplace(cli) as place, contextlib.closing(place.session(config.name)) as session:
        if not is_embedded_cpu(session):
            raise OrchestrateError(f"{config.name!r} is not an embedded host; start its service with its own tools.")
        with held_for(place.store, session, "start"):
            changed = provision_services(session, place.progress, restart=False)
        pid = session.services.status(session.unit).main_pid
    port = config.router.port if config.router.enabled else config.service.port
    url = f"http://127.0.0.1:{port}/v1"
    cli.out.line(f"{config.name}: {', '.join(changed) or 'was running'}; {url} answers (pid {pid})")
    cli.out.document(ExitCode.DONE, {"hosts": [{"name": config.name, "url": url, "pid": pid, "changed": changed}]})
    return ExitCode.DONE


@hosts.command("trust", help="Pin a host's key after showing its fingerprint.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Pin without asking (compare the fingerprint by other means first).")
@command_options
def trust(cli: Cli, name: str, yes: bool) -> int:
    from orchestrator.hosts.trust import pin_key, shown_keys

    config = cli.host(name)
    keys = shown_keys(config, cli.home)
    for key in keys:
        cli.out.line(f"{config.name} ({key.address}) shows {key.kind} {key.fingerprint}")
    cli.confirm(f"Pin this key for {config.name}?", yes=yes)
    pin_key(config, cli.home, keys)
    cli.out.line(f"pinned for {config.name}")
    cli.out.document(ExitCode.DONE, {"hosts": [{"name": config.name, "keys": [key.to_json() for key in keys]}]})
    return ExitCode.DONE


@hosts.command("clean", help="Remove every trace of orchestrate from a host.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command_options
def clean(cli: Cli, name: str, yes: bool) -> int:
    from orchestrator.hosts.clean import clean_host

    config = cli.host(name)
    cli.confirm(f"Remove every trace of orchestrate from {config.name}? Releases there are deleted.", yes=yes)
    with workplace(cli) as place:
        removed = clean_host(config, cli.home, place.store)
    for item in removed or ["nothing was there"]:
        cli.out.line(f"removed {item}" if removed else item)
    cli.out.document(ExitCode.DONE, {"hosts": [{"name": config.name, "removed": removed}]})
    return ExitCode.DONE
