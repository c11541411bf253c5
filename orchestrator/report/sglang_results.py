"""Results of SGLang's own serving benchmark (`sglang.benchmark.serving`, older: `sglang.bench_serving`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError


@dataclass(frozen=True)
class ServingResult:
    """One line of its result file, in this project's units: seconds and tokens per second.

    Its TPOT leaves out the first token and so is what this project calls itl; its ITL, the gaps between
    deliveries shared among the tokens each brought, is what this project calls token gap.
    accept_length is the server's life-time average, not this run's, and only shown as such.
    """

    source: str
    load: str
    requests: int
    wall_s: float
    output_tokens: int
    tok_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    token_gap_p50_s: float
    e2e_p50_s: float
    accept_length_lifetime: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_serving_results(path: Path) -> list[ServingResult]:
    """Every line of a JSONL result file. UsageError names the line that is none, or the file when empty."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} can't be read ({exc}); give the --output-file of SGLang's benchmark.") from exc
    results = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                results.append(_one(json.loads(line), f"{path.name}:{number}"))
            except (ValueError, KeyError, TypeError) as exc:
                raise UsageError(f"{path} line {number} is no result of SGLang's serving benchmark ({exc}).") from exc
    if not results:
        raise UsageError(f"{path} holds no result; give the --output-file of SGLang's benchmark.")
    return results


def _one(raw: dict[str, Any], source: str) -> ServingResult:
    rate, most = raw["request_rate"], raw.get("max_concurrency")
    open_loop = isinstance(rate, int | float) and rate != float("inf")
    load = f"{rate:g} requests/s" if open_loop else f"{most or 'unlimited'} at once"
    return ServingResult(
        source=source,
        load=load,
        requests=int(raw["completed"]),
        wall_s=float(raw["duration"]),
        output_tokens=int(raw["total_output_tokens"]),
        tok_s=float(raw["output_throughput"]),
        ttft_p50_s=raw["median_ttft_ms"] / 1e3,
        ttft_p99_s=raw["p99_ttft_ms"] / 1e3,
        itl_p50_s=raw["median_tpot_ms"] / 1e3,
        itl_p99_s=raw["p99_tpot_ms"] / 1e3,
        token_gap_p50_s=raw["median_itl_ms"] / 1e3,
        e2e_p50_s=raw["median_e2e_latency_ms"] / 1e3,
        accept_length_lifetime=raw.get("accept_length"),
    )
