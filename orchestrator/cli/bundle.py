"""`orchestrate bundle build|verify`: an offline wheelhouse for a host that reaches no registry."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.errors import ExitCode, OrchestrateError
from orchestrator.hosts.session import HostSession
from orchestrator.release.bundle import Bundle, opened, write_bundle
from orchestrator.release.lacking import Target, download_lacking, target_of
from orchestrator.release.wheels import build_plugin_wheel
from orchestrator.remote.venvs import environment_of_process

MIB = 1 << 20


@click.group(help="Wheels for a host that reaches no registry: make a bundle, check one.")
def bundle() -> None:
    """Group of commands about offline wheelhouses."""


@bundle.command("build", help="The plugin, and with --with what else is wanted and the host's environment lacks.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--with", "requirements", multiple=True, metavar="REQUIREMENT", help="A package besides the plugin.")
@click.option("--part-size", default=1900, show_default=True, type=click.IntRange(1), help="Largest part, in MiB.")
@command_options
def build(cli: Cli, folder: Path, host: str | None, requirements: tuple[str, ...], part_size: int) -> int:
    config = cli.host(host)
    with workplace(cli) as place, contextlib.closing(place.session(config.name)) as session:
        target = _target(session)
        plugin = build_plugin_wheel(session.wheel_dir)
    with tempfile.TemporaryDirectory(prefix="orchestrate-wheels-") as scratch:
        wheels = download_lacking(requirements, target, Path(scratch)) if requirements else []
        made = write_bundle(folder, wheels, plugin, target.described(), part_size * MIB)
    _show(cli, made, f"for Python {target.python} on {target.machine}; deploy with --set bundle={folder}")
    return ExitCode.DONE


@bundle.command("verify", help="Check every part and every wheel of a bundle against its checksums.")
@click.argument("folder", type=click.Path(path_type=Path))
@command_options
def verify(cli: Cli, folder: Path) -> int:
    with opened(folder) as (found, _):
        _show(cli, found, "every checksum fits")
    return ExitCode.DONE


def _target(session: HostSession) -> Target:
    """The environment that the service really imports from."""
    status = session.services.status(session.unit)
    if not status.running:
        raise OrchestrateError(
            f"{session.unit} on {session.name!r} does not run, so its environment is not known; start it first."
        )
    environment = environment_of_process(session.transport, status.main_pid, sudo=session.privileged)
    return target_of(session.transport, environment.python, sudo=session.privileged)


def _show(cli: Cli, made: Bundle, said: str) -> None:
    cli.out.table(("part", "bytes", "sha256"), ([one.file, one.bytes, one.sha256[:16]] for one in made.parts))
    cli.out.line(f"{len(made.wheels)} wheels in {len(made.parts)} parts, {said}")
    cli.out.document(ExitCode.DONE, {"folder": str(made.folder), **made.to_json()})
