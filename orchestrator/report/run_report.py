"""The run report of a stored run: its tasks, smoke checks and sweep, written as files into one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.bench.result import SweepResult
from orchestrator.bench.watch import compare
from orchestrator.errors import UsageError
from orchestrator.openai.smoke import CheckResult
from orchestrator.report.export import arms_csv, rows_csv, sweep_json
from orchestrator.report.html import RunReport, TaskLine, plots_of, render_report
from orchestrator.report.sglang_results import ServingResult
from orchestrator.report.sweeps import SWEEP, sweep_of
from orchestrator.store.records import RunRecord, TaskRecord, moment
from orchestrator.store.store import Store

AGAINST = "held_against"  # in a task's output: the run with which it compared this one
_CHECKS = TypeAdapter(list[CheckResult])


def run_report(
    store: Store, run_id: str, against: str | None = None, imported: Sequence[ServingResult] = ()
) -> RunReport:
    """What the store knows of a run; UsageError for an unknown one.

    against: a run to compare its sweep with, by default the one that the run itself was held against.
    imported: results of SGLang's own benchmark, to stand beside.
    """
    run = store.runs.get(run_id)
    tasks = store.tasks.list(run.id)
    sweep = sweep_of(store, run.id)
    other = store.runs.get(against).id if against else _held_against(tasks)
    before = sweep_of(store, other) if other else None
    if against and not (before and sweep):
        raise UsageError(f"Run {run.id if before else other} measured no sweep, so the two can't be compared.")
    return RunReport(
        title=f"{run.graph} on {run.host}",
        run_id=run.id,
        made_at=_time(run.finished_at) or f"running since {_time(run.created_at)}",
        facts={**_facts(run), **engine_facts(sweep)},
        tasks=[_line(task) for task in tasks],
        checks=_checks(tasks),
        sweep=sweep,
        changes=compare(before, sweep, sweep.verdict.margin) if before and sweep else (),
        compared_with=f"run {other}" if other else "",
        imported=imported,
    )


def _held_against(tasks: Sequence[TaskRecord]) -> str | None:
    return next((str(task.output[AGAINST]) for task in tasks if task.output and task.output.get(AGAINST)), None)


def write_run_report(store: Store, run_id: str, folder: Path, against: str | None = None) -> list[Path]:
    """`write_report` of what the store knows of a run."""
    return write_report(run_report(store, run_id, against), folder)


def write_report(report: RunReport, folder: Path) -> list[Path]:
    """Write report.html, each plot as PNG and SVG, and the sweep as CSV and JSON; returns the files, report first."""
    plots = plots_of(report)
    files: dict[str, str | bytes] = {"report.html": render_report(report, plots)}
    for plot in plots:
        files |= {f"plots/{plot.name}.png": plot.png, f"plots/{plot.name}.svg": plot.svg}
    if report.sweep:
        files |= {
            "rows.csv": rows_csv(report.sweep.rows),
            "arms.csv": arms_csv(report.sweep.arms),
            SWEEP: sweep_json(report.sweep),
        }
    written = []
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        written.append(path)
    return written


def _time(seconds: float | None) -> str:
    at = moment(seconds)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""


def _facts(run: RunRecord) -> Mapping[str, str]:
    facts = {
        "host": run.host,
        "graph": run.graph,
        "state": run.state.value + (f" (exit code {run.exit_code})" if run.exit_code is not None else ""),
        "reason": run.reason,
        "started": f"{_time(run.created_at)} by {run.started_by} from {run.started_from}",
        "finished": _time(run.finished_at),
        "settings": ", ".join(f"{key}={value}" for key, value in run.settings.items()),
    }
    return {name: value for name, value in facts.items() if value}


def engine_facts(sweep: SweepResult | None) -> dict[str, str]:
    """What both servers of a sweep say of themselves, and the prompts."""
    if sweep is None or not sweep.rows:
        return {}
    engine = ", ".join(f"{name} {value}" for name, value in sweep.rows[0].engine.items())
    prompts = f"{sweep.settings.get('prompts', '?')} of set {sweep.settings.get('prompt_set', '?')}"
    return {name: value for name, value in {"engine": engine, "prompts": prompts}.items() if value}


def _line(task: TaskRecord) -> TaskLine:
    return TaskLine(task.content, task.priority.value, task.state.value, task.duration_s, task.reason)


def _checks(tasks: Sequence[TaskRecord]) -> list[CheckResult]:
    """The checks of every task that ran the smoke suite, as its output or a part of it; named by server if several."""
    known = set(CheckResult.__dataclass_fields__)
    outputs = [task.output or {} for task in tasks]
    suites: list[Any] = [suite for output in outputs for suite in (output, output.get("smoke")) if _is_suite(suite)]
    return _CHECKS.validate_python(
        [
            {key: value for key, value in check.items() if key in known}
            | {"name": f"{check['name']} ({suite.get('where', 'server')})" if len(suites) > 1 else check["name"]}
            for suite in suites
            for check in suite["checks"]
        ]
    )


def _is_suite(found: Any) -> bool:
    """Whether this is what tasks keep of a smoke suite: where it ran, and its checks."""
    checks = found.get("checks") if isinstance(found, Mapping) else None
    return isinstance(checks, list) and all(isinstance(check, Mapping) and "proves" in check for check in checks)
