"""`orchestrate run --tui`: the run as a process of its own, and the live view on it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.cli.context import Cli
from orchestrator.cli.detached import DetachedRun, start_run, wait_begun
from orchestrator.cli.summary import print_summary
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode
from orchestrator.operations import Workplace, stored_document
from orchestrator.store.runs import may_live

LAST_WORDS_S = 10.0  # from the end of the run in the store to the end of its process


def run_and_watch(
    cli: Cli,
    place: Workplace,
    graph: str,
    host: str,
    settings: Mapping[str, str],
    *,
    resume: str | None,
    run_id: str | None,
    plan_file: Path | None,
    **selected: Sequence[str],
) -> int:
    """Start the run, show it until the view is closed, and return the run's exit code, or 0 while it goes on."""
    from orchestrator.tui.launch import open_tui

    arguments = [graph, "--host", host]
    if plan_file is not None:
        arguments += ["--plan", str(plan_file.resolve())]
    for option, values in {**selected, "set": [f"{name}={value}" for name, value in settings.items()]}.items():
        for value in values:
            arguments += [f"--{option}", value]
    chosen = resume or run_id or place.store.runs.new_id()
    run = start_run(cli.hosts_file, cli.store_url, chosen, arguments, new=resume is None)
    cli.out.note(f"run {chosen} starts as process {run.process.pid}; its progress goes to {run.log}")
    if wait_begun(place.store, run) is None:
        raise run.refusal()
    open_tui(cli.store_url, chosen, cli.hosts_file, no_color=cli.out.no_color)
    return _closed(cli, place, run)


def _closed(cli: Cli, place: Workplace, run: DetachedRun) -> int:
    """How the run stands by the store: from the view it may have been cancelled and resumed as another process."""
    record = place.store.runs.get(run.run_id)
    if record.state.active:
        if may_live(record.process):
            cli.out.line(f"{record.id} goes on; `orchestrate tui {record.id}` shows it again.")
            return ExitCode.DONE
        cli.out.error(
            f"The process of run {record.id} is gone; `orchestrate run {record.graph} --resume {record.id}` goes on."
        )
        return ExitCode.INTERRUPTED
    with contextlib.suppress(subprocess.TimeoutExpired):  # its report is written after the run has ended
        run.process.wait(LAST_WORDS_S)
    print_summary(cli.out, stored_document(place, record))
    code = ExitCode(record.exit_code or 0)
    if code not in SUCCESS:
        cli.out.error(record.reason)
    return code
