"""`orchestrate run` and `orchestrate cancel`."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import click

from orchestrator import operations
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.cli.progress import RunProgress
from orchestrator.cli.settings import read_settings, resumed_settings
from orchestrator.cli.summary import print_summary
from orchestrator.documents import SUCCESS, envelope
from orchestrator.errors import ExitCode, OrchestrateError, UsageError
from orchestrator.fleet import FACT
from orchestrator.graph.model import GraphSpec
from orchestrator.graph.runner import RunResult
from orchestrator.store.records import RunRecord

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.command(help="Run a graph: deploy-ddtree, deploy-dflash, inspect, smoke, bench, rollback.")
@click.argument("graph")
@click.option(
    "--host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Host of the inventory, or group:NAME; may be repeated. Default: the first one.",
)
@click.option(
    "--at-once",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="With several hosts: how many at a time, after the first one alone.",
)
@click.option("--resume", metavar="RUN", help="Go on with this run ('last' for the newest).")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Run only what this plan file says.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the graph.")
@click.option("--reason", help="Why a decision is overridden (with --set decide=…).")
@click.option("--only", multiple=True, metavar="KEY", help="Only this task and what it needs.")
@click.option("--skip", multiple=True, metavar="KEY", help="Leave this task out.")
@click.option("--force", multiple=True, metavar="KEY", help="Run this task even if an earlier result would do.")
@click.option("--run-id", metavar="ID", help="Id of the new run; default: made from the time.")
@click.option("--tui", is_flag=True, help="Run as a process of its own, and watch it; closing never stops it.")
@click.option("--yes", is_flag=True, help="Do not ask before the host is changed.")
@command_options
def run(cli: Cli, graph: str, names: tuple[str, ...], at_once: int, yes: bool, tui: bool, **options: Any) -> int:
    settings = read_settings(options.pop("settings"), options.pop("reason"))
    code = _several(cli, graph, names, at_once, settings, yes, {**options, "tui": tui})
    if code is not None:
        return code
    if tui and cli.out.json_mode:
        raise UsageError("--tui shows a screen and --json prints a document; choose one of them.")
    config = cli.host(names[0] if names else None)
    spec = operations.build_graph(graph, config, settings) if options["resume"] is None else None
    with workplace(cli) as place:
        _check_new_id(place, options["run_id"], options["resume"])
        if spec is None:
            earlier = _resumed(cli, place, options["resume"], names, graph)
            # What it was begun with still counts, also for how the graph is built.
            settings = resumed_settings(earlier.id, earlier.settings, settings)
            options["resume"], config = earlier.id, cli.host(earlier.host)
            spec = operations.build_graph(graph, config, settings)
        if any(task.changes_host for task in spec.tasks):
            cli.confirm(f"Run {graph} on {config.name}? It may change the service there.", yes=yes)
        if tui:
            from orchestrator.cli.watch import run_and_watch

            return run_and_watch(cli, place, graph, config.name, settings, **options)
        return carry_out(cli, place, spec, config, settings, **options)


def _several(
    cli: Cli, graph: str, names: tuple[str, ...], at_once: int, settings: dict[str, str], yes: bool, options: Any
) -> int | None:
    """Run on several hosts, or resume that; None when it is about one host."""
    from orchestrator.cli.fleet import refuse_with_fleet, run_fleet, settings_arguments
    from orchestrator.fleet import GROUP_MARK, Fleet, chosen_hosts, find_fleet

    several = len(names) > 1 or any(name.startswith(GROUP_MARK) for name in names)
    if not several and options["resume"] is None:
        return None
    with workplace(cli) as place:
        earlier = find_fleet(place.store, options["resume"], graph) if options["resume"] else None
        if not several and (earlier is None or options["resume"] == "last"):
            return None
        refuse_with_fleet(options)
        if options["resume"] and earlier is None:
            raise UsageError(f"There is no run of {graph} on several hosts called {options['resume']} to resume.")
        _check_new_id(place, options["run_id"], options["resume"])
        chosen = chosen_hosts(cli.inventory, names)
        if earlier is not None:
            settings = resumed_settings(earlier.id, earlier.settings, settings)
        new_id = options["run_id"] or place.store.runs.new_id()
        fleet = earlier or Fleet(new_id, graph, tuple(chosen), at_once, settings)
        specs = [operations.build_graph(graph, cli.host(host), settings) for host in fleet.hosts]
        harmless = not any(task.changes_host for spec in specs for task in spec.tasks)
        keys = {name: options[name] for name in ("only", "skip", "force")}
        arguments = settings_arguments(settings, keys)
        return run_fleet(cli, place, fleet, arguments, resume=earlier is not None, yes=yes or harmless)


def carry_out(
    cli: Cli, place: operations.Workplace, spec: GraphSpec, config: Any, settings: Any, **options: Any
) -> int:
    """Run a graph with progress on stderr, then print its summary or document."""
    contents = {task.key: task.content for task in spec.tasks}
    try:
        with RunProgress(contents, cli.out.progress_console) as progress:
            result = operations.run_graph(place, spec, config, settings, on_event=progress, **options)
    except OrchestrateError as error:
        _keep_last(cli, envelope(error.exit_code, {}, str(error)))
        raise
    return report(cli, place, result)


def report(cli: Cli, place: operations.Workplace, result: RunResult) -> int:
    """The end of a run: summary or document, and the exit code."""
    code = ExitCode(result.exit_code)
    body = operations.run_document(place, result)
    error = None if code in SUCCESS else result.reason
    _keep_last(cli, envelope(code, body, error))
    with contextlib.suppress(SystemExit, BrokenPipeError):  # that nobody reads on changes nothing of how it ended
        print_summary(cli.out, body)
        cli.out.document(code, body, error)
        if error:
            cli.out.error(error)
    return code


def _keep_last(cli: Cli, document: dict[str, Any]) -> None:
    """On a full disk only this file is missing: how the run ended must be told all the same."""
    try:
        operations.keep_last(cli.home, document)
    except OSError as error:
        cli.out.note(f"{error.filename} could not be written: {error.strerror}")


def _resumed(cli: Cli, place: operations.Workplace, wanted: str, names: tuple[str, ...], graph: str) -> RunRecord:
    """The run to go on with; refused when it is of another graph or host than was said."""
    if wanted == "last":
        host = cli.host(names[0] if names else None).name
        latest = place.store.runs.latest(host, graph)
        if latest is None:
            raise UsageError(f"There is no run of {graph} on {host} to resume; start one without --resume.")
        return latest
    run = place.store.runs.get(wanted)
    if run.graph != graph or (names and run.host != cli.host(names[0]).name):
        said = f"`orchestrate run {run.graph} --resume {run.id}`"
        raise UsageError(f"The run {run.id} is one of {run.graph} on {run.host}: {said} goes on with it.")
    return run


def _check_new_id(place: operations.Workplace, run_id: str | None, resume: str | None) -> None:
    if run_id is None:
        return
    if resume is not None:
        raise UsageError("--run-id names a new run and --resume an earlier one; give one of them.")
    if not RUN_ID.fullmatch(run_id):
        raise UsageError(f"--run-id {run_id}: use 1 to 64 letters, digits, dots, dashes and underscores.")
    known = None
    with contextlib.suppress(UsageError):
        known = place.store.runs.get(run_id).id
    if known == run_id or place.store.facts.latest(FACT, run_id):  # also the id of a run on several hosts
        raise UsageError(f"--run-id {run_id}: there is such a run already; `--resume {run_id}` goes on with it.")


@click.command(help="Ask a running graph to stop at the next safe point.")
@click.argument("run_id", metavar="RUN")
@click.option("--reason", default="cancelled by hand", help="Recorded with the run.")
@command_options
def cancel(cli: Cli, run_id: str, reason: str) -> int:
    with workplace(cli) as place:
        run = place.store.runs.request_cancel(run_id, place.masker.mask(reason))
    cli.out.line(
        f"{run.id} will stop after the current effect; `orchestrate run {run.graph} --resume {run.id}` goes on."
    )
    cli.out.document(ExitCode.DONE, {"run_id": run.id, "state": run.state})
    return ExitCode.DONE
