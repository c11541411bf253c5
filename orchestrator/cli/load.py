"""`orchestrate load`: latencies and throughput of any OpenAI-compatible server under a ladder of loads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from orchestrator.bench.load import Level, LoadResult, Target, run_ladder
from orchestrator.bench.metrics import Objective
from orchestrator.bench.prompts import load_prompt_sets, load_prompts, native_prompt, shipped_sets
from orchestrator.cli.by_url import key_of, numbers
from orchestrator.cli.context import Cli, command_options
from orchestrator.errors import ExitCode, UsageError
from orchestrator.openai.client import Client
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.records import Api

APIS = {"chat": Api.CHAT, "completions": Api.COMPLETIONS, "native": Api.NATIVE}
COLUMNS = ("load", "requests", "failed", "tok/s", "TTFT ms", "ITL ms", "E2E ms", "goodput", "client late ms")


@click.command(help="Latency and throughput of any OpenAI-compatible server under a ladder of loads.")
@click.argument("url")
@click.option("--concurrency", metavar="LIST", help="Closed loop: so many requests at once; default 1,4,16.")
@click.option(
    "--rate", metavar="LIST", help="Open loop instead: so many requests per second, whatever the server does."
)
@click.option("--fixed", is_flag=True, help="With --rate: even distances instead of Poisson arrivals.")
@click.option("--requests", default=16, type=click.IntRange(1), help="Requests of each level, at least 3 per stream.")
@click.option("--max-tokens", default=128, type=click.IntRange(1))
@click.option("--temperature", default=0.0, type=click.FloatRange(0), help="0 = greedy.")
@click.option("--seed", type=int, help="Of the first request; each further one gets the next number.")
@click.option("--api", type=click.Choice(sorted(APIS)), default="completions")
@click.option("--thinking/--no-thinking", default=None, help="Chat only: switch the model's reasoning on or off.")
@click.option("--prompts", metavar="FILE", help="JSONL, or text with one prompt a line; default: the project's own.")
@click.option("--slo", multiple=True, metavar="NAME=SECONDS", help="Objective for goodput: ttft, itl or e2e.")
@click.option("--api-key", metavar="REF", help="Reference to the key: env:NAME, file:PATH or cmd:COMMAND.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the report; default: below .run/reports.")
@command_options
def load(cli: Cli, url: str, out: Path | None, requests: int, slo: tuple[str, ...], **given: Any) -> int:
    levels, key = levels_of(given), key_of(given["api_key"], "--api-key")
    api, server = APIS[given["api"]], Endpoint(url, key, "--api-key")
    with Client(server) as client:
        model = (client.models() or ["default"])[0]
        prompts = _prompts(client, given["prompts"], api, model)
    target = Target(
        server, api, model, given["max_tokens"], given["temperature"], given["seed"], thinking=given["thinking"]
    )
    done = run_ladder(
        target,
        prompts,
        requests,
        levels,
        objective_of(slo),
        on_level=lambda r: cli.out.note("  " + "  ".join(_cells(r))),
    )
    folder = out or cli.home / ".run" / "reports" / f"load-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    report = _write(url, done, folder)
    cli.out.table(COLUMNS, [_cells(result) for result in done])
    cli.out.line(f"report   {report}")
    failed = sum(result.summary.failed for result in done)
    code = ExitCode.FAILED_UNCHANGED if failed else ExitCode.DONE
    error = f"{failed} requests failed at {url}; see the table." if failed else None
    cli.out.document(code, {"levels": [result.to_json() for result in done], "run_report": str(report)}, error)
    if error:
        cli.out.error(error)
    return code


def levels_of(given: dict[str, Any]) -> list[Level]:
    """The ladder asked for: closed loop, or open loop with --rate."""
    if given["rate"] and given["concurrency"]:
        raise UsageError("--rate is an open loop and --concurrency a closed one; give one of them.")
    if not given["rate"]:
        return [Level(concurrency=n) for n in numbers("--concurrency", given["concurrency"] or "1,4,16")]
    try:
        rates = [float(part) for part in given["rate"].split(",")]
    except ValueError:
        rates = [0.0]
    if min(rates) <= 0:
        raise UsageError(f"--rate {given['rate']}: give requests per second above 0, separated by commas.")
    return [Level(rate_per_s=rate, poisson=not given["fixed"]) for rate in rates]


def objective_of(parts: tuple[str, ...]) -> Objective | None:
    """`ttft=0.5`, `itl=0.05`, `e2e=10` as an objective; None without any."""
    limits: dict[str, float] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in ("ttft", "itl", "e2e") or not value.replace(".", "", 1).isdigit():
            raise UsageError(f"--slo {part}: write ttft=, itl= or e2e= and seconds.")
        limits[f"{name}_s"] = float(value)
    return Objective(**limits) if limits else None


def _prompts(client: Client, path: str | None, api: Api, model: str) -> list[tuple[str, Any]]:
    """Chat gets messages; the other endpoints what the server's chat template makes of them."""
    prompts = load_prompts(Path(path)) if path else load_prompt_sets(shipped_sets())
    if api is Api.CHAT:
        return [(p.id, list(p.messages) if p.messages else p.text or "") for p in prompts if p.input_ids is None]
    return [(p.id, native_prompt(client, p, model)) for p in prompts]


def _write(url: str, results: list[LoadResult], folder: Path) -> Path:
    from orchestrator.report.html import RunReport
    from orchestrator.report.run_report import write_report

    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return write_report(RunReport(f"Load on {url}", folder.name, made, loads={url: results}), folder)[0]


def _cells(result: LoadResult) -> tuple[str, ...]:
    s = result.summary
    goodput = "-" if s.goodput_share is None else f"{s.goodput_share:.0%}"
    times = [_ms(value) for value in (s.ttft.p50, s.itl.p50, s.e2e.p50)]
    late = _ms(result.client_delay_p99_s)
    return (result.level.label, str(s.requests), str(s.failed), f"{s.tok_s:.1f}", *times, goodput, late)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
