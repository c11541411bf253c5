"""The tools that change a host, or stop what does: each needs a plan that this server made."""

from __future__ import annotations

from typing import Any

from orchestrator import operations
from orchestrator.documents import encode, write_whole
from orchestrator.errors import UsageError
from orchestrator.hosts.load import select_host
from orchestrator.hosts.secrets import looks_secret
from orchestrator.mcp.arguments import CancelArguments, PlanArguments, RollbackArguments, RunArguments
from orchestrator.mcp.desk import Agreed, Desk

ROLLBACK = "rollback"


def plan(desk: Desk, given: PlanArguments) -> dict[str, Any]:
    settings = dict(given.settings) | ({"reason": given.reason} if given.reason is not None else {})
    for name, value in settings.items():
        if looks_secret(value):
            raise UsageError(f"The setting {name} looks like a secret, which hosts.yaml refers to instead (env:NAME).")
    place = desk.place()
    config = select_host(place.inventory, given.host)
    spec = operations.build_graph(given.graph, config, settings)
    found = operations.plan_graph(place, spec, config, settings)
    path = operations.plan_path(place.home, found)
    body = operations.plan_document(found, spec)
    write_whole(path, encode(body))  # a run of the same plan may be reading it
    desk.plans[found.plan_id] = Agreed(found.plan_id, given.graph, config.name, settings, path)
    return {**body, "changes_host": any(task.changes_host for task in spec.tasks), "path": str(path)}


def run(desk: Desk, given: RunArguments) -> dict[str, Any]:
    agreed = desk.agreed(given.plan_id)
    if agreed.graph == ROLLBACK:
        raise UsageError(f"The plan {agreed.plan_id} rolls {agreed.host} back: give it to the tool rollback.")
    resume = None
    if given.resume is not None:
        earlier = desk.store.runs.get(given.resume)
        if (earlier.graph, earlier.host) != (agreed.graph, agreed.host):
            raise UsageError(
                f"The run {earlier.id} is {earlier.graph} on {earlier.host}, the plan is {agreed.graph} on"
                f" {agreed.host}; plan what is to be resumed."
            )
        if dict(earlier.settings) != dict(agreed.settings):
            begun = ", ".join(f"{name}={value}" for name, value in earlier.settings.items()) or "no settings"
            raise UsageError(f"The run {earlier.id} was begun with {begun}: make a plan with the same to resume it.")
        resume = earlier.id
    return _started(desk, agreed, resume)


def rollback(desk: Desk, given: RollbackArguments) -> dict[str, Any]:
    agreed = desk.agreed(given.plan_id)
    if agreed.graph != ROLLBACK:
        raise UsageError(f"The plan {agreed.plan_id} is for {agreed.graph}; call plan with graph rollback first.")
    return _started(desk, agreed, None)


def _started(desk: Desk, agreed: Agreed, resume: str | None) -> dict[str, Any]:
    begun = desk.start(agreed, resume)
    return {
        "run_id": begun.run_id, "plan_id": agreed.plan_id, "graph": agreed.graph, "host": agreed.host,
        "log": str(begun.log), "next": "status and logs with this run_id follow it; it goes on without this server",
    }  # fmt: skip


def cancel(desk: Desk, given: CancelArguments) -> dict[str, Any]:
    found = desk.store.runs.request_cancel(given.run_id, desk.masker.mask(given.reason))
    return {"run_id": found.id, "state": found.state, "next": "it stops after its current effect; status shows when"}
