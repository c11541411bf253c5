"""`orchestrate doctor`: the operator's machine, checked."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode
from orchestrator.hosts.doctor import run_checks


@click.command(help="Check this machine and say how to mend each finding.")
@command_options
def doctor(cli: Cli) -> int:
    checks = run_checks(cli.hosts_file, cli.store_url)
    width = max(len(check.name) for check in checks)
    for check in checks:
        cli.out.line(f"{'ok ' if check.ok else 'BAD'}  {check.name:<{width}}  {check.detail}")
        if not check.ok:
            cli.out.line(f"     {'':<{width}}  -> {check.fix}")
    bad = [check.name for check in checks if not check.ok]
    code = ExitCode.FAILED_UNCHANGED if bad else ExitCode.DONE
    error = f"{len(bad)} of {len(checks)} checks need attention: {', '.join(bad)}." if bad else None
    cli.out.document(code, {"checks": checks}, error)
    return code
