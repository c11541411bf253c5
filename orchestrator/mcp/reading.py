"""The tools that only look: at the store, at a host, or into a folder."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from typing import Any

from orchestrator import operations
from orchestrator.cli.detached import RunError
from orchestrator.cli.inspect import inspection
from orchestrator.cli.rollback import release_rows
from orchestrator.cli.status import run_json, serving
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode
from orchestrator.graph.events import to_json
from orchestrator.graph.explain import explain as explained
from orchestrator.hosts.load import select_host
from orchestrator.mcp.arguments import (
    ExplainArguments,
    InspectArguments,
    LogsArguments,
    ReleasesArguments,
    StatusArguments,
)
from orchestrator.mcp.desk import Desk
from orchestrator.store.process import ProcessName
from orchestrator.store.records import RunRecord

POLL_S = 0.25


def status(desk: Desk, given: StatusArguments) -> dict[str, Any]:
    if given.host is not None:
        place = desk.place()
        return serving(place, select_host(place.inventory, given.host))
    run = _awaited(desk, given.run_id, given.wait_s)
    document = operations.stored_document(desk.place(), run)
    return {"run": run_json(run), "working": _working(desk, run), **document}


def _awaited(desk: Desk, run_id: str | None, wait_s: float) -> RunRecord:
    run = desk.chosen(run_id)
    until = time.monotonic() + wait_s
    while _working(desk, run) and time.monotonic() < until:
        time.sleep(POLL_S)
        run = desk.chosen(run.id)
    return run


def _working(desk: Desk, run: RunRecord) -> bool:
    """Whether a process works on the run, or was started to do so; one that was killed leaves its run active."""
    started = desk.started.get(run.id)
    worker = ProcessName.from_text(run.process)
    lives = worker is not None and worker.alive() is not False
    return (run.state.active and lives) or (started is not None and started.exit_code is None)


def explain(desk: Desk, given: ExplainArguments) -> dict[str, Any]:
    return asdict(explained(desk.store, desk.chosen(given.run_id).id, given.task))


def logs(desk: Desk, given: LogsArguments) -> dict[str, Any]:
    run = desk.chosen(given.run_id)
    if given.task is not None:
        desk.store.tasks.get(run.id, given.task)
    events = desk.store.events
    found = (
        events.latest(given.limit, run.id, given.task)
        if given.after is None
        else events.tail(given.after, run.id, given.task, limit=given.limit)
    )
    last = found[-1].seq if found else given.after or 0
    return {"run_id": run.id, "state": run.state, "events": [to_json(event) for event in found], "last": last}


def releases(desk: Desk, given: ReleasesArguments) -> dict[str, Any]:
    place = desk.place()
    name = select_host(place.inventory, given.host).name
    with contextlib.closing(place.session(name)) as session:
        return {"releases": release_rows(session)}


def inspect(desk: Desk, given: InspectArguments) -> dict[str, Any]:
    place = desk.place()
    result, body = inspection(place, select_host(place.inventory, given.host), given.path)
    if result.exit_code not in SUCCESS:
        raise RunError(result.reason, ExitCode(result.exit_code))
    return body
