"""`orchestrate bench --linear-url URL --tree-url URL`: the paired sweep on servers that run already."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.bench.by_url import RowFile, Servers, Switch, check_algorithms, judge_of, without_loops
from orchestrator.bench.paired import run_paired_sweep
from orchestrator.bench.prompts import load_prompt_sets, load_prompts, shipped_sets
from orchestrator.bench.result import SweepResult
from orchestrator.bench.rows import Row
from orchestrator.bench.verdict import Decision
from orchestrator.cli.context import Cli
from orchestrator.cli.summary import verdict_sentence
from orchestrator.cli.sweep import print_sweep
from orchestrator.errors import BenchInvalidError, ExitCode, UsageError
from orchestrator.hosts import secrets
from orchestrator.openai.endpoint import Endpoint

DEFAULTS: dict[str, Any] = {
    "budgets": "15,16,22,32,64,128,256,512,1024", "pairs": 10, "max_tokens": 512, "group_size": 4, "margin": 0.02,
    "loads": "1", "tie_nats": 0.25, "seconds": 86400,
}  # fmt: skip
CODES = {Decision.ADOPT: ExitCode.DONE, Decision.INVALID: ExitCode.BENCH_INVALID}


def run_by_url(cli: Cli, linear: str, trees: Sequence[str], given: dict[str, Any]) -> int:
    """Measure, write rows, result and report into a folder, and return the exit code of the verdict."""
    values = DEFAULTS | {name: value for name, value in given.items() if value is not None}
    unknown = sorted(values.keys() - {*DEFAULTS, "prompts", "api_key", "control_token", "out", "reference", "resume"})
    if unknown:
        raise UsageError(f"{unknown[0]} does not apply to servers given by address; these do: {', '.join(DEFAULTS)}.")
    budgets, loads = numbers("--budgets", values["budgets"]), numbers("--loads", values["loads"])
    prompts = load_prompts(Path(values["prompts"])) if values.get("prompts") else load_prompt_sets(shipped_sets())
    addresses, folder = addresses_of(trees), _folder(cli, values)
    key = key_of(values.get("api_key"), "--api-key")
    trees_at = {budget: Endpoint(url, key, "--api-key") for budget, url in addresses.items()}
    servers = Servers(Endpoint(linear, key, "--api-key"), trees_at, switch=_switch(trees_at.get(0), values))
    check_algorithms(servers, budgets)
    prompts, looping = without_loops(servers, prompts, int(values["max_tokens"]))
    if looping:
        cli.out.note(f"  left out, their linear output repeats itself: {', '.join(looping)}")
    if not prompts:
        raise BenchInvalidError(f"{linear} repeats itself on every prompt; measure with other prompts.")
    kept, end = RowFile(folder), time.monotonic() + float(values["seconds"])
    done, fingerprint = kept.read(), servers.fingerprint()
    if others := sum(row.fingerprint != fingerprint for row in done):
        cli.out.note(f"  {others} rows in {kept.path} are of other servers, or of these before a restart: not counted")

    def on_row(row: Row) -> None:
        kept.append(row)
        why = "; ".join(finding.reason for finding in row.findings)
        cli.out.note(
            f"  {row.arm:<6} B={row.budget:<4} {row.concurrency} at once, pair {row.pair}: {row.tok_s:8.1f} tok/s, "
            f"{row.counts.tokens_per_step or 0:.2f} tokens per step{' invalid: ' + why if why else ''}"
        )

    result = run_paired_sweep(
        servers.open_linear, servers.open_tree, budgets, prompts, pairs=int(values["pairs"]),
        max_tokens=int(values["max_tokens"]), margin=float(values["margin"]), on_row=on_row, concurrencies=loads,
        group_size=int(values["group_size"]), tie_nats=float(values["tie_nats"]),
        judge_of_ties=judge_of(Endpoint(values["reference"], key, "--api-key")) if values.get("reference") else None,
        out_of_time=lambda: time.monotonic() > end, done_rows=done, fingerprint=fingerprint,
    )  # fmt: skip
    return _end(cli, result, folder, servers)


def _folder(cli: Cli, values: dict[str, Any]) -> Path:
    """Where rows and report go; UsageError for a folder with the report of a sweep that nobody asked to go on with."""
    from orchestrator.report.sweeps import SWEEP

    if not values.get("out"):
        return cli.home / ".run" / "reports" / f"bench-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    folder = Path(values["out"])
    if (folder / SWEEP).exists() and not values.get("resume"):
        raise UsageError(
            f"{folder} holds the report of a finished sweep; give another --out, remove it, or go on with that sweep "
            "(more pairs, other budgets) with --resume."
        )
    return folder


def _end(cli: Cli, result: SweepResult, folder: Path, servers: Servers) -> int:
    from orchestrator.report.html import RunReport
    from orchestrator.report.run_report import engine_facts, write_report

    verdict = result.verdict.to_json()
    trees = ", ".join(f"{budget}: {url}" if budget else str(url) for budget, url in servers.trees.items())
    facts = {"linear": str(servers.linear), "tree": trees, **engine_facts(result)}
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    files = write_report(RunReport("Paired sweep of two servers", folder.name, made, facts, sweep=result), folder)
    arms = [arm.to_json() for arm in result.arms]
    print_sweep(cli.out, arms)
    cli.out.line(f"verdict  {verdict_sentence(verdict)}")
    cli.out.line(f"report   {files[0]}")
    code = CODES.get(result.verdict.decision, ExitCode.NOT_ADOPTED)
    error = result.verdict.reason if code is ExitCode.BENCH_INVALID else None
    rows = [row.to_json() for row in result.rows]
    cli.out.document(
        code, {"run_id": None, "arms": arms, "rows": rows, "verdict": verdict, "run_report": str(files[0])}, error
    )
    if error:
        cli.out.error(error)
    return code


def addresses_of(trees: Sequence[str]) -> dict[int, str]:
    """`URL` for every budget (under 0), or `B=URL` for one; UsageError for two of the same."""
    found: dict[int, str] = {}
    for text in trees:
        budget, equals, url = text.partition("=")
        key, url = (int(budget), url) if equals and budget.isdecimal() else (0, text)
        if key in found:
            raise UsageError(f"--tree-url {text}: that is the second address for {key or 'every budget'}.")
        found[key] = url
    return found


def _switch(tree: Endpoint | None, values: dict[str, Any]) -> Switch | None:
    token = key_of(values.get("control_token"), "--control-token")
    if token is None:
        return None
    if tree is None:
        raise UsageError("--control-token switches the widths of one server; give --tree-url URL without a budget.")
    from orchestrator.bench.width_switch import WidthSwitch

    switch = WidthSwitch(tree, token)
    return lambda budget: switch.set(budget)


def key_of(reference: str | None, option: str) -> str | None:
    """The value behind a reference (env:, file:, cmd:); None without one."""
    return secrets.resolve(reference, what=option) if reference else None


def numbers(option: str, text: str) -> list[int]:
    """`1,4,16` as ascending whole numbers from 1 on; UsageError names the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{option} {text}: give whole numbers from 1 on, separated by commas.")
    return sorted({int(part) for part in parts})
