"""The end of a run as a person reads it: the table of tasks, the verdict, where the service and the roadmap are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.output import Output


def print_summary(out: Output, body: Mapping[str, Any]) -> None:
    """Table (task, state, time, what was proven), then verdict, live service and roadmap."""
    rows = [(t["key"], t["state"], _seconds(t["seconds"]), _why(t)) for t in body["tasks"]]
    out.line()
    out.table(("task", "state", "time", "evidence or reason"), rows)
    out.line()
    out.line(f"run      {body['run_id']}: {body['state']}{' – ' + body['reason'] if body['reason'] else ''}")
    if body.get("verdict"):
        out.line(f"verdict  {verdict_sentence(body['verdict'])}")
    service = body.get("service") or {}
    if service.get("url"):
        nodes = f", {service['nodes']} nodes" if service.get("nodes") else ""
        out.line(f"service  {service['url']} ({service.get('algorithm', 'unknown')}{nodes})")
    if body.get("run_report"):
        out.line(f"report   {body['run_report']}")
    if body.get("report"):
        out.line(f"roadmap  {body['report']}")


def verdict_sentence(verdict: Mapping[str, Any]) -> str:
    """The decision with its figures: ratio, interval, pairs."""
    figures = ""
    if verdict.get("ratio") is not None:
        low, high = verdict.get("ci95") or (float("nan"), float("nan"))
        figures = (
            f"; B={verdict['budget']}: {verdict['ratio']:.3f}x linear, 95 % CI {low:.3f}–{high:.3f}, n={verdict['n']}"
        )
    by = " (override)" if verdict.get("by") == "override" else ""
    return f"{verdict['decision']}{by}: {verdict['reason']}{figures}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _why(task: Mapping[str, Any]) -> str:
    proof = (task.get("evidence") or {}).get("output", "")
    return (
        str(task["reason"] or proof)
        if task["state"] != "completed"
        else " – ".join(part for part in (proof, task["reason"]) if part)
    )
