"""`orchestrate smoke` and `orchestrate bench`; by address they run without inventory, store and SSH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from orchestrator.cli.by_url import run_by_url
from orchestrator.cli.context import Cli, command_options
from orchestrator.cli.settings import read_settings
from orchestrator.errors import ExitCode, UsageError
from orchestrator.hosts import secrets
from orchestrator.openai.endpoint import Endpoint
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
            Endpoint(url, key),
            model,
            quick,
            on_check=lambda r: cli.out.note(f"{r.outcome:<11} {r.name}: {r.detail}"),
            reference=reference_of(Endpoint(reference, key)) if reference else None,
        )
        return _smoke_end(cli, smoke_passed(results), [r.to_json() for r in results])
    from orchestrator.cli.measure_host import smoke_host

    body, code, error = smoke_host(cli, cli.host(host))
    if code:
        cli.out.document(code, body, error)
        cli.out.error(error)
        return code
    return _smoke_end(cli, True, body["checks"])


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
@click.option(
    "--tree-server",
    metavar="PORT|UNIT",
    help="Measure a DDTREE server that was started by hand on the host against the linear service; it is not stopped.",
)
@click.option("--linear-url", metavar="URL", help="Measure two servers that run already: the linear DFLASH one,")
@click.option(
    "--tree-url",
    "tree_urls",
    multiple=True,
    metavar="[B=]URL",
    help="and the DDTREE one, or one for each budget. No inventory, nothing is started or stored.",
)
@click.option("--control-token", metavar="REF", help="With --tree-url: its SGLANG_DDTREE_CONTROL_TOKEN (env:NAME, …).")
@click.option("--api-key", metavar="REF", help="With --tree-url: key of both servers (env:NAME, file:PATH, cmd:…).")
@click.option("--reference", metavar="URL", help="With --tree-url: server that tells log-probabilities, to judge ties.")
@click.option(
    "--out", metavar="DIR", help="With --tree-url: folder of rows and report; a sweep that broke off there goes on."
)
@click.option("--resume", is_flag=True, help="With --out: go on also with a sweep that has its report already.")
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
    tree_urls: tuple[str, ...],
    control_token: str | None,
    api_key: str | None,
    reference: str | None,
    out: str | None,
    resume: bool,
    yes: bool,
    **given: Any,
) -> int:
    by_url = {
        "control_token": control_token, "api_key": api_key, "reference": reference, "out": out, "resume": resume or None
    }  # fmt: skip
    if given["tree_server"] and (linear_url or tree_urls or oracle):
        raise UsageError("--tree-server is measured through the host's connection, without --oracle and addresses.")
    if linear_url and tree_urls:
        return run_by_url(
            cli, linear_url, tree_urls, {**read_settings(settings), **given, **by_url, "prompts": prompts}
        )
    if linear_url or tree_urls or any(by_url.values()):
        raise UsageError(
            "--linear-url and --tree-url belong together; --control-token, --api-key, --reference, --out and --resume "
            "to them."
        )
    values = read_settings(settings) | {name: str(value) for name, value in given.items() if value is not None}
    from orchestrator.cli.measure_host import bench_host
    from orchestrator.cli.oracle import run_oracle

    config = cli.host(host)
    if oracle:
        cli.confirm(f"Run the acceptance oracle on {config.name}? It computes there for a while.", yes=yes)
        return run_oracle(cli, config, values, {"oracle": True, "prompts": prompts, "device": device})
    if device:
        raise UsageError("--device belongs to --oracle; the sweep measures where the service runs.")
    if prompts:
        values["prompts"] = str(Path(prompts).resolve())
    what = "Side engines are started there for a while."
    if given["tree_server"]:
        what = f"The linear service and {given['tree_server']} get requests; nothing is started or stopped."
    cli.confirm(f"Measure on {config.name}? {what}", yes=yes)
    return bench_host(cli, config, values)
