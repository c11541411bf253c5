"""`orchestrate bench --oracle`: acceptance of chain and trees before deploying, as a table or a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator import operations
from orchestrator.cli.context import Cli
from orchestrator.cli.output import Output
from orchestrator.cli.place import workplace
from orchestrator.cli.progress import RunProgress
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode
from orchestrator.hosts.inventory import HostConfig

COLUMNS = ("B", "T", "tok/step", "break-even cost", "95 % CI", "step cost", "ratio")


def run_oracle(cli: Cli, config: HostConfig, values: dict[str, str], options: Mapping[str, Any]) -> int:
    """Run the graph, print what it found, and return the exit code."""
    spec = operations.build_graph("bench", config, values, options)
    with workplace(cli) as place:
        with RunProgress({task.key: task.content for task in spec.tasks}, cli.out.progress_console) as progress:
            result = operations.run_graph(place, spec, config, values, on_event=progress)
        found = place.store.tasks.get(result.run_id, "oracle").output or {}
    code = ExitCode(result.exit_code)
    error = None if code in SUCCESS else result.reason
    if found and error is None:
        print_oracle(cli.out, found["rows"], found["oracle"], found["verdict"])
    body = {"run_id": result.run_id, "arms": [], "rows": found.get("rows", [])}
    cli.out.document(code, {**body, "verdict": found.get("verdict"), "oracle": found.get("oracle")}, error)
    if error:
        cli.out.error(error)
    return code


def print_oracle(
    out: Output, rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, Any], verdict: Mapping[str, Any]
) -> None:
    """The table, what its columns mean, the verdict, and where the baseline lies."""
    out.table(COLUMNS, [_cells(row) for row in rows])
    out.line("break-even cost: a tree pays while its step costs less than this many linear steps")
    if all(row["step_cost"] is None for row in rows):
        out.line("step cost: not known for this host; `orchestrate bench` measures it")
    out.line(f"figures from {oracle['basis']}")
    out.line(f"verdict  {verdict['decision']}: {verdict['reason']}")
    out.line(f"kept     {oracle['baseline']}")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = row["ci95"]
    return (
        str(row["nodes"] or "chain"), str(row["width"]), f"{row['tokens_per_step']:.2f}", f"{row['break_even']:.2f}",
        f"{low:.2f}-{high:.2f}", _figure(row["step_cost"]), _figure(row["ratio"]),
    )  # fmt: skip


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
