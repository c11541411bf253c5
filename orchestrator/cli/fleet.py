"""`orchestrate run` with several hosts: asks once, shows a line for each host, ends with the worst exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.cli.context import Cli
from orchestrator.cli.detached import DetachedRun, start_run
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode, UsageError
from orchestrator.fleet import Fleet, FleetRun, fleet_rows
from orchestrator.operations import Workplace
from orchestrator.store.store import Store


def run_fleet(cli: Cli, place: Workplace, fleet: Fleet, arguments: Sequence[str], *, resume: bool, yes: bool) -> int:
    """Ask once, run or resume, print a line for each host, and end with the worst code."""
    first, others = fleet.hosts[0], len(fleet.hosts) - 1
    cli.confirm(
        f"Run {fleet.graph} on {len(fleet.hosts)} hosts ({first} first, then {others} more, at most {fleet.at_once} "
        "at a time)? It may change the services there.", yes=yes,
    )  # fmt: skip
    if not resume:
        fleet.keep(place.store, place.masker.mask)

    def start(host: str, new: bool) -> DetachedRun:
        wish = [fleet.graph, "--host", host, *arguments]
        return start_run(cli.hosts_file, cli.store_url, fleet.run_id(host), wish, new=new)

    run = FleetRun(place.store, fleet, start, lambda text: cli.out.note(f"  {text}"))
    code = run.carry_out()
    show_fleet(cli, place.store, fleet, code)
    return code


def show_fleet(cli: Cli, store: Store, fleet: Fleet, code: ExitCode) -> None:
    """The table or document of a fleet run."""
    rows = fleet_rows(store, fleet)
    cli.out.line(f"{fleet.id}  {fleet.graph} on {len(rows)} hosts")
    columns = ("host", "state", "exit_code", "run_id", "reason")
    cli.out.table(columns, ([_text(row[column]) for column in columns] for row in rows))
    bad = [row["host"] for row in rows if row["exit_code"] is not None and row["exit_code"] not in SUCCESS]
    idle = [row["host"] for row in rows if row["exit_code"] is None]
    if bad or idle:
        cli.out.line(f"`orchestrate run {fleet.graph} --resume {fleet.id}` goes on with what is left.")
    error = None if code in SUCCESS else f"{', '.join(bad) or 'no host'} failed; {len(idle)} hosts were not finished."
    cli.out.document(code, {"fleet": fleet.id, "graph": fleet.graph, "hosts": rows}, error)
    if error:
        cli.out.error(error)


def _text(value: object) -> object:
    return "" if value is None else value


def settings_arguments(settings: Mapping[str, str], options: Mapping[str, Sequence[str]]) -> list[str]:
    """The options of this invocation, for the process of one host."""
    arguments = [part for name, value in settings.items() if name != "reason" for part in ("--set", f"{name}={value}")]
    if "reason" in settings:
        arguments += ["--reason", settings["reason"]]
    for name, values in options.items():
        arguments += [part for value in values for part in (f"--{name}", value)]
    return arguments


def refuse_with_fleet(options: Mapping[str, Any]) -> None:
    """Options that are about one host."""
    for name, option in (("plan_file", "--plan"), ("tui", "--tui")):
        if options.get(name):
            raise UsageError(f"{option} is about one host; leave it out with several.")
