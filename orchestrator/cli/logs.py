"""`orchestrate logs` and `orchestrate export`."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode, UsageError
from orchestrator.graph.events import follow, history, to_json
from orchestrator.store.records import Event, moment
from orchestrator.store.store import open_to_read


@click.command(help="Events and log lines of a run or a task.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.argument("task", required=False)
@click.option("-f", "--follow", "keep_on", is_flag=True, help="Go on until the run ends.")
@command_options
def logs(cli: Cli, run_id: str | None, task: str | None, keep_on: bool) -> int:
    with open_to_read(cli.store_url) as store:
        run = store.runs.get(run_id) if run_id else store.runs.latest()
        if run is None:
            raise UsageError("There is no run yet; `orchestrate run deploy-ddtree` starts one.")
        if task is not None:
            store.tasks.get(run.id, task)
        events = follow(store, run.id, task_key=task) if keep_on else history(store, run.id)
        kept = []
        for event in events:
            if task is not None and event.task_key != task:
                continue
            cli.out.line(_line(event))
            if cli.out.json_mode:
                kept.append(to_json(event))
    cli.out.document(ExitCode.DONE, {"run_id": run.id, "events": kept})
    return ExitCode.DONE


def _line(event: Event) -> str:
    at = moment(event.at)
    clock = at.strftime("%H:%M:%S") if at else ""
    where = event.task_key or "run"
    if event.kind == "log":
        return f"{clock}  {where:<16} {event.data.get('line', '')}"
    told = (
        event.data.get("reason") or event.data.get("output") or event.data.get("text") or event.data.get("name") or ""
    )
    words = told if isinstance(told, str) else ""
    return f"{clock}  {where:<16} {event.kind} {words}".rstrip()


@click.command(help="One run as a self-contained folder: events, logs, files, metrics, report with plots, roadmap.")
@click.argument("run_id", metavar="RUN")
@click.argument("directory", type=click.Path(path_type=Path))
@command_options
def export(cli: Cli, run_id: str, directory: Path) -> int:
    from orchestrator.graph.export import export_run, missing_files
    from orchestrator.report.roadmap import write_copy
    from orchestrator.report.run_report import write_run_report

    with open_to_read(cli.store_url) as store:
        try:
            files = export_run(store, run_id, directory)
            missing = [f"{item.task_key}/{item.name}" for item in missing_files(store, run_id)]
            run = store.runs.get(run_id)
            files += write_run_report(store, run.id, directory / "report")
            files += write_copy(store, run.id, directory)
        except OSError as error:  # that of a write names no file
            raise OSError(error.errno, error.strerror, error.filename or str(directory)) from error
    cli.out.line(f"{len(files)} files written to {directory}")
    if missing:
        cli.out.line(
            f"{len(missing)} kept files are not on this machine: {', '.join(missing[:5])}{', …' if missing[5:] else ''}; "
            "export the run where it was made to have them (files.json lists all)"
        )
    cli.out.document(ExitCode.DONE, {"files": [str(path) for path in files], "missing": missing})
    return ExitCode.DONE
