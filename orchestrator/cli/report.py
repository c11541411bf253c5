"""`orchestrate report`: the report of a stored run again, compared with another run, beside imported results."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode, UsageError
from orchestrator.store.store import open_to_read


@click.command(
    help="The report of a run as HTML, plots, CSV and JSON; with --against compared with another run, with --import "
    "beside results of SGLang's own serving benchmark."
)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--against", metavar="RUN", help="Run to compare the sweep with.")
@click.option("--import", "files", multiple=True, metavar="FILE", help="--output-file of SGLang's serving benchmark.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to; default: the run's own.")
@command_options
def report(cli: Cli, run_id: str | None, against: str | None, files: tuple[str, ...], out: Path | None) -> int:
    from orchestrator.report.place import report_path
    from orchestrator.report.run_report import run_report, write_report
    from orchestrator.report.sglang_results import read_serving_results

    imported = [result for file in files for result in read_serving_results(Path(file))]
    with open_to_read(cli.store_url) as store:
        run = store.runs.get(run_id) if run_id else store.runs.latest()
        if run is None:
            raise UsageError("There is no run yet; `orchestrate bench` makes one with a report.")
        made = run_report(store, run.id, against, imported)
    written = write_report(made, out or report_path(cli.home, run.id).parent)
    if made.changes:
        rows = [
            (str(c.concurrency), c.arm, c.figure, f"{c.before:.2f}", f"{c.now:.2f}", f"{c.ratio:.3f}",
             f"{c.ci95[0]:.3f}-{c.ci95[1]:.3f}", "worse" if c.worse else "held")
            for c in made.changes
        ]  # fmt: skip
        cli.out.table(("at once", "arm", "figure", "before", "now", "ratio", "95 % CI", ""), rows)
    cli.out.line(f"report   {written[0]}")
    cli.out.document(
        ExitCode.DONE,
        {
            "run_id": run.id,
            "files": [str(path) for path in written],
            "changes": [change.to_json() for change in made.changes],
            "imported": [result.to_json() for result in imported],
        },
    )
    return ExitCode.DONE
