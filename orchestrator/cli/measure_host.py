"""Smoke tests and sweeps of a host of the inventory, as runs in the store."""

from __future__ import annotations

from typing import Any

from orchestrator import operations
from orchestrator.cli.context import Cli
from orchestrator.cli.place import workplace
from orchestrator.cli.summary import verdict_sentence
from orchestrator.cli.sweep import print_sweep
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode
from orchestrator.graph.runner import RunResult
from orchestrator.hosts.inventory import HostConfig


def smoke_host(cli: Cli, config: HostConfig) -> tuple[dict[str, Any], ExitCode, str]:
    """The run's document with the checks of the live service, its exit code and its reason."""
    spec = operations.build_graph("smoke", config, {})
    with workplace(cli) as place:
        result, body = _run(cli, place, spec, config, {})
        found = place.store.tasks.get(result.run_id, "smoke").output or {}
    return {"checks": found.get("checks", []), **body}, ExitCode(result.exit_code), result.reason


def bench_host(cli: Cli, config: HostConfig, values: dict[str, str]) -> int:
    """The sweep, its table, verdict and report; returns the exit code."""
    spec = operations.build_graph("bench", config, values)
    with workplace(cli) as place:
        result, body = _run(cli, place, spec, config, values)
        found = _measured(place, result)
    code = ExitCode(result.exit_code)
    print_sweep(cli.out, found["arms"])
    if body["verdict"]:
        cli.out.line(f"verdict  {verdict_sentence(body['verdict'])}")
    if body["run_report"]:
        cli.out.line(f"report   {body['run_report']}")
    error = None if code in SUCCESS else result.reason
    told = {key: body[key] for key in ("verdict", "run_report")}
    cli.out.document(code, {"run_id": result.run_id, **found, **told}, error)
    if error:
        cli.out.error(error)
    return code


def _measured(place: operations.Workplace, result: RunResult) -> dict[str, Any]:
    """The parts of the document that the sweep fills: arms, rows, and the comparison with an earlier sweep."""
    from orchestrator.report.sweeps import sweep_of

    sweep = sweep_of(place.store, result.run_id)
    outputs = {task.key: task.output or {} for task in result.tasks}
    return {
        "arms": [arm.to_json() for arm in sweep.arms] if sweep else [],
        "rows": [row.to_json() for row in sweep.rows] if sweep else [],
        "against": outputs.get("hold-against", {}).get("against"),
        "changes": outputs.get("hold-against", {}).get("changes", []),
    }


def _run(
    cli: Cli, place: operations.Workplace, spec: Any, config: Any, values: dict[str, str]
) -> tuple[RunResult, dict[str, Any]]:
    from orchestrator.cli.progress import RunProgress

    with RunProgress({task.key: task.content for task in spec.tasks}, cli.out.progress_console) as progress:
        result = operations.run_graph(place, spec, config, values, on_event=progress)
    return result, operations.run_document(place, result)
