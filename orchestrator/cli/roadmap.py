"""`orchestrate roadmap`: the document regenerated from the store."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode
from orchestrator.report.roadmap import RoadmapDrift, regenerate, roadmap_path
from orchestrator.store.store import open_to_read


@click.command(help="Regenerate the roadmap from the store.")
@click.option("--check", is_flag=True, help="Only compare: exit 1 on drift or hand edits outside the notes.")
@click.option("--run", "run_id", metavar="RUN", help="The run to show; default: the newest deployment.")
@command_options
def roadmap(cli: Cli, check: bool, run_id: str | None) -> int:
    with open_to_read(cli.store_url) as store:
        try:
            written = regenerate(store, cli.home, run_id=run_id, check=check)
        except RoadmapDrift as error:
            cli.out.error(str(error))
            lost = {"path": str(roadmap_path(cli.home)), "sha256": None, "changed": True}
            cli.out.document(ExitCode.FAILED_UNCHANGED, lost, str(error))
            return ExitCode.FAILED_UNCHANGED
    words = "is up to date" if check or not written.changed else "written"
    cli.out.line(f"{written.path} {words} (SHA-256 {written.sha256[:12]})")
    kept = str(written.kept) if written.kept else None
    if kept:
        cli.out.line(f"what was edited by hand is kept as {kept}")
    body = {"path": str(written.path), "sha256": written.sha256, "changed": written.changed, "kept": kept}
    cli.out.document(ExitCode.DONE, body)
    return ExitCode.DONE
