"""`orchestrate smoke` and `orchestrate bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from orchestrator import operations
from orchestrator.cli.by_url import run_by_url
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.oracle import run_oracle
from orchestrator.cli.place import read_settings, workplace
from orchestrator.cli.summary import verdict_sentence
from orchestrator.cli.sweep import print_sweep
from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode, UsageError
from orchestrator.graph.runner import RunResult
from orchestrator.hosts import secrets
from orchestrator.openai.smoke import reference_of, run_smoke, smoke_passed


@click.command(help="OpenAI smoke tests against a host's live service, or any OpenAI-compatible URL.")
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--url", help="Base URL of a server (with or without /v1); no inventory is needed.")
@click.option("--api-key", metavar="REF", help="Reference to the key: env:NAME, file:PATH or cmd:COMMAND.")
@click.option("--model", help="Model name; default: the first one that the server lists.")
@click.option("--quick", is_flag=True, help="Leave out the checks that take long.")
@click.option(
    "--reference", metavar="URL", help="With --url: a server with the same key whose greedy ids it must give."
)
@command_options
def smoke(
    cli: Cli,
    host: str | None,
    url: str | None,
    api_key: str | None,
    model: str | None,
    quick: bool,
    reference: str | None,
) -> int:
    if url is not None:
        key = secrets.resolve(api_key, what="--api-key") if api_key else None
        results = run_smoke(
            url,
            model,
            key,
            quick,
            on_check=lambda r: cli.out.note(f"{r.outcome:<11} {r.name}: {r.detail}"),
            reference=reference_of(reference, key) if reference else None,
        )
        return _smoke_end(cli, smoke_passed(results), [r.to_json() for r in results])
    config = cli.host(host)
    spec = operations.build_graph("smoke", config, {})
    with workplace(cli) as place:
        result, body = _run(cli, place, spec, config, {})
        checks = place.store.tasks.get(result.run_id, "smoke").output or {}
    if result.exit_code:
        cli.out.document(ExitCode(result.exit_code), {"checks": checks.get("checks", []), **body}, result.reason)
        cli.out.error(result.reason)
        return ExitCode(result.exit_code)
    return _smoke_end(cli, True, checks["checks"])


def _smoke_end(cli: Cli, passed: bool, checks: list[dict[str, Any]]) -> int:
    counts = {word: sum(c["outcome"] == word for c in checks) for word in ("passed", "failed", "not offered")}
    cli.out.line(", ".join(f"{count} {word}" for word, count in counts.items()))
    code = ExitCode.DONE if passed else ExitCode.FAILED_UNCHANGED
    failed = [c["name"] for c in checks if c["outcome"] == "failed"]
    error = (
        f"{len(failed)} checks failed: {', '.join(failed)}." if failed else None if passed else "No check could run."
    )
    cli.out.document(code, {"checks": checks}, error)
    if error:
        cli.out.error(error)
    return code


@click.command(
    help="Paired budget sweep with a verdict; nothing is cut over. --oracle asks before anything is deployed what "
    "trees would accept and what their steps may cost."
)
@click.option("--host", metavar="NAME", help="Host of the inventory; default: the first one.")
@click.option("--budgets", metavar="LIST", help="Node budgets, comma-separated.")
@click.option("--pairs", type=click.IntRange(1, 1000), help="Pairs per budget.")
@click.option("--max-tokens", type=click.IntRange(8), help="Tokens per request.")
@click.option("--max-live-load", type=click.FloatRange(0), help="Requests allowed on the live service at once.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the graph.")
@click.option("--loads", metavar="LIST", help="Requests at once at which each budget is measured; default: 1.")
@click.option("--against", metavar="NAME", help="Fail when it fell below this run, release or known-good (exit 1).")
@click.option("--prompts", metavar="FILE", help="JSONL, or text with one prompt a line; default: the project's own.")
@click.option("--oracle", is_flag=True, help="Measure acceptance offline instead, in the service's environment.")
@click.option(
    "--device", metavar="NAME", help="With --oracle: cpu, cuda or cuda:N; default: a GPU with room, else cpu."
)
@click.option("--linear-url", metavar="URL", help="Measure two servers that run already: the linear DFLASH one,")
@click.option("--tree-url", metavar="URL", help="and the DDTREE one. No inventory, nothing is started or stored.")
@click.option("--control-token", metavar="REF", help="With --tree-url: its SGLANG_DDTREE_CONTROL_TOKEN (env:NAME, …).")
@click.option("--api-key", metavar="REF", help="With --tree-url: key of both servers (env:NAME, file:PATH, cmd:…).")
@click.option("--out", metavar="DIR", help="With --tree-url: folder of rows and report; one that exists is continued.")
@click.option("--yes", is_flag=True, help="Do not ask before side engines are started.")
@command_options
def bench(
    cli: Cli,
    host: str | None,
    settings: tuple[str, ...],
    oracle: bool,
    prompts: str | None,
    device: str | None,
    linear_url: str | None,
    tree_url: str | None,
    control_token: str | None,
    api_key: str | None,
    out: str | None,
    yes: bool,
    **given: Any,
) -> int:
    by_url = {"control_token": control_token, "api_key": api_key, "out": out}
    if linear_url and tree_url:
        return run_by_url(cli, linear_url, tree_url, {**read_settings(settings), **given, **by_url, "prompts": prompts})
    if linear_url or tree_url or any(by_url.values()):
        raise UsageError("--linear-url and --tree-url belong together; --control-token, --api-key and --out to them.")
    values = read_settings(settings) | {name: str(value) for name, value in given.items() if value is not None}
    config = cli.host(host)
    if oracle:
        cli.confirm(f"Run the acceptance oracle on {config.name}? It computes there for a while.", yes=yes)
        return run_oracle(cli, config, values, {"oracle": True, "prompts": prompts, "device": device})
    if device:
        raise UsageError("--device belongs to --oracle; the sweep measures where the service runs.")
    if prompts:
        values["prompts"] = str(Path(prompts).resolve())
    spec = operations.build_graph("bench", config, values)
    cli.confirm(f"Measure on {config.name}? Side engines are started there for a while.", yes=yes)
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
