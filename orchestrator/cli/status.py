"""`orchestrate status`, `history` and `explain`: what the store knows."""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode, UsageError
from orchestrator.graph.fingerprint import short
from orchestrator.store.records import RunRecord, RunState, TaskRecord, moment
from orchestrator.store.runs import process_gone
from orchestrator.store.store import Store, open_store, open_to_read

if TYPE_CHECKING:  # reading the store needs no host: SSH and the inventory are imported when a host is asked
    from orchestrator.graph.explain import Explanation
    from orchestrator.hosts.inventory import HostConfig
    from orchestrator.operations import Workplace


@click.command(help="How a run stands, or with --host what a host serves now.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--host", metavar="NAME", help="Ask the host what it serves now.")
@command_options
def status(cli: Cli, run_id: str | None, host: str | None) -> int:
    if host is not None:
        return _host_status(cli, host)
    with open_to_read(cli.store_url) as store:
        if run_id is not None and _fleet_status(cli, store, run_id):
            return ExitCode.DONE
        run = _chosen(store, run_id)
        tasks = store.tasks.list(run.id)
    rows = [(t.key, t.state.value, _seconds(t.duration_s), t.attempts, t.reason) for t in tasks]
    cli.out.line(f"{run.id}  {run.graph} on {run.host}: {run.state.value}{' – ' + run.reason if run.reason else ''}")
    cli.out.table(("task", "state", "time", "attempts", "reason"), rows)
    gone = process_gone(run)
    if gone:
        cli.out.line(f"Its process is gone; `orchestrate run {run.graph} --resume {run.id}` finds out and goes on.")
    elif run.state in (RunState.INTERRUPTED, RunState.FAILED, RunState.CANCELLED, RunState.ROLLBACK_UNVERIFIED):
        cli.out.line(f"`orchestrate run {run.graph} --resume {run.id}` goes on.")
    body = {"run": run_json(run), "working": run.state.active and not gone, "tasks": [task_json(t) for t in tasks]}
    cli.out.document(ExitCode.DONE, body)
    return ExitCode.DONE


def _fleet_status(cli: Cli, store: Store, run_id: str) -> bool:
    """Show a run over several hosts; False when that is not the id of one."""
    if store.facts.latest("fleet", run_id) is None:
        return False
    from orchestrator.cli.fleet import show_fleet
    from orchestrator.fleet import find_fleet

    fleet = find_fleet(store, run_id)
    assert fleet is not None
    show_fleet(cli, store, fleet, ExitCode.DONE)
    return True


@click.group(invoke_without_command=True, help="Runs so far: who, when, what, how they ended.")
@click.option("--host", metavar="NAME", help="Only runs on this host.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many, newest first.")
@command_options
def history(cli: Cli, host: str | None, limit: int) -> int:
    if click.get_current_context().invoked_subcommand is not None:
        return ExitCode.DONE
    with open_to_read(cli.store_url) as store:
        runs = store.runs.list(host=host, limit=limit)
    rows = [
        (r.id, r.graph, r.host, r.state.value, "" if r.exit_code is None else r.exit_code, r.started_by,
         _when(r.created_at), r.started_from)
        for r in runs
    ]  # fmt: skip
    cli.out.table(("run", "graph", "host", "state", "exit", "by", "started", "from"), rows)
    cli.out.document(ExitCode.DONE, {"runs": [run_json(run) for run in runs]})
    return ExitCode.DONE


@history.command(
    "prune", help="Forget old runs; unfinished ones and the newest proven one of each graph and host stay."
)
@click.option("--older-than", "days", type=click.FloatRange(min=0.0), default=90.0, show_default=True, metavar="DAYS")
@click.option("--keep", type=click.IntRange(1), default=5, show_default=True, help="Newest runs of a graph that stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command_options
def prune_runs(cli: Cli, days: float, keep: int, dry_run: bool, yes: bool) -> int:
    from orchestrator.store.retention import prune

    if not math.isfinite(days):
        raise UsageError(f"--older-than {days}: give a number of days.")
    with open_store(cli.store_url) as store:
        found = prune(store, days * 86_400, keep, dry_run=True)
        if found.runs and not dry_run:
            cli.confirm(
                f"Forget {len(found.runs)} runs with {found.events} events for good?",
                yes=yes,
                why="This removes runs for good",
            )
            found = prune(store, days * 86_400, keep)
    words = "would be forgotten" if dry_run else "forgotten"
    cli.out.line(f"{len(found.runs)} runs with {found.events} events {words}, {found.files} kept files removed")
    for run_id in found.runs:
        cli.out.line(f"  {run_id}")
    cli.out.document(ExitCode.DONE, {**asdict(found), "dry_run": dry_run})
    return ExitCode.DONE


@history.command("vacuum", help="Give the space of forgotten runs back to the disk.")
@command_options
def vacuum_store(cli: Cli) -> int:
    from orchestrator.store.retention import vacuum

    with open_store(cli.store_url) as store:
        before, after = vacuum(store)
    cli.out.line(f"the store was compacted from {before / 2**20:.1f} to {after / 2**20:.1f} MiB")
    cli.out.document(ExitCode.DONE, {"bytes_before": before, "bytes_after": after})
    return ExitCode.DONE


@click.command(help="Why a task would run again, was skipped, or is blocked.")
@click.argument("task")
@click.option("--run", "run_id", metavar="RUN", help="The run; default: the newest.")
@command_options
def explain(cli: Cli, task: str, run_id: str | None) -> int:
    from orchestrator.graph.explain import explain as explained

    with open_to_read(cli.store_url) as store:
        found = explained(store, _chosen(store, run_id).id, task)
    cli.out.line(f"{found.key}: {found.state.value}, {found.verdict}")
    for reason in found.reasons:
        cli.out.line(f"  {reason.kind}: {reason.text}")
    for name, before, now in compared(found):
        cli.out.line(f"  {name}: {before}" if before == now else f"  {name}: {before} -> {now}")
    cli.out.document(ExitCode.DONE, asdict(found))
    return ExitCode.DONE


def compared(found: Explanation) -> list[tuple[str, str, str]]:
    """Inputs that changed and every fact of the host: what it is, then its value in the run before and in this one."""
    rows = [(f"input {change.name}", change.old, change.new) for change in found.inputs_changed]
    for name in sorted({*found.facts_before, *found.facts_now}):
        now = found.facts_now.get(name)
        rows.append((f"host {name}", found.facts_before.get(name) if found.facts_before else now, now))
    return [(name, short(before), short(now)) for name, before, now in rows]


def _chosen(store: Store, run_id: str | None) -> RunRecord:
    run = store.runs.get(run_id) if run_id else store.runs.latest()
    if run is None:
        raise UsageError("There is no run yet; `orchestrate run deploy-ddtree` starts one.")
    return run


def _host_status(cli: Cli, host: str) -> int:
    from orchestrator.cli.place import workplace

    config = cli.host(host)
    with workplace(cli) as place:
        found = serving(place, config)
    for name, value in found.items():
        cli.out.line(f"{name:<14} {_words(value)}")
    cli.out.document(ExitCode.DONE, found)
    return ExitCode.DONE


def serving(place: Workplace, config: HostConfig) -> dict[str, Any]:
    """What a host serves now, and who holds its lock."""
    from orchestrator.hosts.serving import serving_now

    with contextlib.closing(place.session(config.name)) as session:
        found = serving_now(session)
    lease = place.store.leases.get(config.name)
    found["lock"] = (
        {"owner": lease.owner, "run_id": lease.run_id, "since": moment(lease.acquired_at)} if lease else None
    )
    return found


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items() if item not in (None, ""))
    if isinstance(value, list):
        return "; ".join(str(item) for item in value) or "none"
    return "-" if value is None else str(value)


def run_json(run: RunRecord) -> dict[str, Any]:
    """A run as documents show it."""
    return {
        "id": run.id, "graph": run.graph, "host": run.host, "state": run.state, "exit_code": run.exit_code,
        "reason": run.reason, "started_by": run.started_by, "started_from": run.started_from,
        "started_at": moment(run.created_at), "finished_at": moment(run.finished_at),
    }  # fmt: skip


def task_json(task: TaskRecord) -> dict[str, Any]:
    """A task of a run as documents show it."""
    return {
        "key": task.key, "content": task.content, "phase": task.phase, "priority": task.priority, "state": task.state,
        "attempts": task.attempts, "started_at": moment(task.started_at), "finished_at": moment(task.finished_at),
        "seconds": task.duration_s, "reason": task.reason,
    }  # fmt: skip


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _when(seconds: float) -> str:
    at = moment(seconds)
    return at.strftime("%Y-%m-%d %H:%M:%S") if at else ""
