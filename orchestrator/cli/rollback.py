"""`orchestrate rollback` and `orchestrate releases`."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from orchestrator import operations
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.place import workplace
from orchestrator.cli.progress import RunProgress
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode
from orchestrator.hosts.session import HostSession
from orchestrator.release.launch import flag_value

GRAPH = "rollback"


@click.command(help="Back to the last known-good linear service, or to a release, proven afterwards.")
@click.option("--to", "release", metavar="RELEASE", help="A known-good release; `orchestrate releases` lists them.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command_options
def rollback(cli: Cli, release: str | None, host: str | None, yes: bool) -> int:
    config = cli.host(host)
    settings = {"to": release} if release else {}
    spec = operations.build_graph(GRAPH, config, settings)
    cli.confirm(f"Roll back {config.name} to {release or 'the last known-good linear service'}?", yes=yes)
    with workplace(cli) as place:
        contents = {task.key: task.content for task in spec.tasks}
        with RunProgress(contents, cli.out.progress_console) as progress:
            result = operations.run_graph(place, spec, config, settings, on_event=progress)
        record = place.store.tasks.get(result.run_id, GRAPH)
        evidence = place.store.evidence.get(record.evidence_id) if record.evidence_id is not None else None
    # Nothing undoes a rollback: when it is not proven, a person has to look.
    code = ExitCode(result.exit_code)
    if code not in SUCCESS and record.began:
        code = ExitCode.ROLLBACK_UNVERIFIED
    output = record.output or {}
    body = {"from": output.get("from"), "to": output.get("to"), "verified": code in SUCCESS, "run_id": result.run_id}
    error = None if code in SUCCESS else result.reason
    if evidence is not None:
        cli.out.line(f"rolled back and verified: {evidence.output}")
    cli.out.document(code, body, error)
    if error:
        cli.out.error(error)
    return code


@click.group(invoke_without_command=True, help="Releases on a host: current, known-good, since when, by what.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@command_options
def releases(cli: Cli, host: str | None) -> int:
    if click.get_current_context().invoked_subcommand is not None:
        return ExitCode.DONE
    config = cli.host(host)
    with workplace(cli) as place, contextlib.closing(place.session(config.name)) as session:
        rows = release_rows(session)
    columns = ("id", "kind", "current", "known_good", "verified_at", "algorithm", "created_at")
    cli.out.table(columns, ([_word(row[column]) for column in columns] for row in rows))
    cli.out.document(ExitCode.DONE, {"releases": rows})
    return ExitCode.DONE


@releases.command("prune", help="Delete old releases; current, known-good and the newest built ones stay.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--keep", default=2, show_default=True, help="How many built releases stay at least.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command_options
def prune(cli: Cli, host: str | None, keep: int, yes: bool) -> int:
    from orchestrator.hosts.guard import held_for

    config = cli.host(host)
    cli.confirm(f"Delete old releases on {config.name}, keeping {keep}?", yes=yes)
    with (
        workplace(cli) as place,
        contextlib.closing(place.session(config.name)) as session,
        held_for(place.store, session, "prune"),
    ):
        gone = session.releases.prune(keep)
    cli.out.line(f"removed {', '.join(gone) or 'nothing'}")
    cli.out.document(ExitCode.DONE, {"removed": gone})
    return ExitCode.DONE


def release_rows(session: HostSession) -> list[dict[str, Any]]:
    """Every complete release with what is known of it, oldest first."""
    store = session.releases
    current = store.current()
    good = {one.release: one for one in store.known_good()}
    rows = []
    for name in store.ids():
        manifest = store.read(name)
        proof = good.get(name)
        rows.append(
            {
                "id": name, "kind": manifest.kind, "current": name == current, "known_good": proof is not None,
                "verified_at": proof.verified_at if proof else None,
                "evidence": dict(proof.evidence) if proof else None, "created_at": manifest.created_at,
                "algorithm": (flag_value(manifest.launch.argv, "--speculative-algorithm") or "NONE").upper(),
                "source": manifest.source_release,
            }
        )  # fmt: skip
    return rows


def _word(value: object) -> object:
    return {True: "yes", False: ""}.get(value, value) if isinstance(value, bool) else value
