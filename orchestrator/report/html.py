"""The run report: one HTML file that needs no network, follows light and dark, and prints."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.bench.load import LoadResult
from orchestrator.bench.result import SweepResult
from orchestrator.bench.watch import Change
from orchestrator.openai.smoke import CheckResult
from orchestrator.report.plots import Plot, points_of_ladder, sweep_plots, throughput_latency
from orchestrator.report.sglang_results import ServingResult


@dataclass(frozen=True)
class TaskLine:
    """One task of the run as the report lists it."""

    content: str
    priority: str
    state: str
    duration_s: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class RunReport:
    """Everything a report can show; parts that are empty are left out.

    facts: name -> value lines about host, engine and models. loads: server name -> its load ladder.
    changes: comparison with an earlier run, named by `compared_with`.
    """

    title: str
    run_id: str
    made_at: str
    facts: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[TaskLine] = ()
    checks: Sequence[CheckResult] = ()
    sweep: SweepResult | None = None
    loads: Mapping[str, Sequence[LoadResult]] = field(default_factory=dict)
    changes: Sequence[Change] = ()
    compared_with: str = ""
    imported: Sequence[ServingResult] = ()
    extra_plots: Sequence[Plot] = ()


def number(value: float | None, digits: int = 3) -> str:
    """Fixed digits, or a dash for what is not known."""
    return "–" if value is None else f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds, two digits."""
    return "–" if value is None else f"{value * 1e3:.2f}"


def interval(pair: Sequence[float] | None) -> str:
    """`low–high` with three digits."""
    return "–" if pair is None else f"{pair[0]:.3f}–{pair[1]:.3f}"


def plots_of(report: RunReport) -> list[Plot]:
    """All pictures of a report, in the order in which it shows them."""
    plots: list[Plot] = []
    if report.sweep:
        verdict = report.sweep.verdict
        plots += sweep_plots(report.sweep.rows, report.sweep.arms, verdict.margin, verdict.budget)
    if report.loads:
        plots.append(throughput_latency({name: points_of_ladder(found) for name, found in report.loads.items()}))
    return [*plots, *report.extra_plots]


def _data_uri(plot: Plot) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(plot.svg.encode()).decode()


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("orchestrator.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "ms": milliseconds, "interval": interval, "uri": _data_uri}
    return environment


def render_report(report: RunReport, plots: Sequence[Plot] | None = None) -> str:
    """The whole document as text; `plots` spares drawing them again."""
    sweep = report.sweep
    context: dict[str, Any] = {
        "report": report,
        "plots": plots_of(report) if plots is None else plots,
        "invalid_rows": [row for row in sweep.rows if not row.valid] if sweep else [],
    }
    return _environment().get_template("run_report.html.j2").render(context)
