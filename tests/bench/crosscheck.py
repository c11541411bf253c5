"""The same load measured by SGLang's own benchmark and by this project's: `python -m tests.bench.crosscheck`.

ENGINE_PYTHON names an interpreter that has SGLang (0.5.16 or newer) and the package `datasets`, which its
benchmark imports. Both clients measure one fixed-latency
stub in a process of its own, in turn, several rounds; the medians must agree within 5 % or the interval of the
rounds, whichever is wider. SGLang's client opens a connection per request and counts that into TTFT, so the
stub's prefill is long against it; on a busy machine TTFT still differs by that. Exit 0 when they do, 1 when not, 2 when there is no such interpreter.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from orchestrator.bench import stats
from orchestrator.bench.load import Level, Target, run_load
from orchestrator.report.sglang_results import read_serving_results
from tests.bench.stub_server import Script, running_stub

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "engine" / "models" / "tiny-dense" / "target"
SCRIPT = Script(prefill_s=0.15, step_s=0.03, accept=(4, 3, 5))
TOLERANCE = 0.05


@dataclass(frozen=True)
class Figures:
    """Of one round; seconds and tokens per second."""

    ttft_s: float
    itl_s: float
    token_gap_s: float
    tok_s: float


def serve(port_out: Connection) -> None:
    with running_stub(SCRIPT) as stub:
        port_out.send(stub.port)
        threading.Event().wait()


def engine_environment() -> dict[str, str]:
    """What lets SGLang be imported on a machine without a GPU."""
    paths = [str(ROOT / "engine" / "sglang_cpu" / "bootstrap"), str(ROOT / "engine"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def by_sglang(python: str, url: str, requests: int, concurrency: int, tokens: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.jsonl"
        command = [
            python, "-m", "sglang.benchmark.serving", "--backend", "sglang", "--base-url", url,
            "--dataset-name", "random-ids", "--random-input-len", "32", "--random-output-len", str(tokens),
            "--random-range-ratio", "1", "--num-prompts", str(requests), "--max-concurrency", str(concurrency),
            "--model", str(TOKENIZER), "--tokenizer", str(TOKENIZER), "--output-file", str(out), "--disable-tqdm",
            "--warmup-requests", "1",
        ]  # fmt: skip
        done = subprocess.run(command, env=engine_environment(), capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise SystemExit(f"SGLang's benchmark failed:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
        (result,) = read_serving_results(out)
    return Figures(result.ttft_p50_s, result.itl_p50_s, result.token_gap_p50_s, result.tok_s)


def by_orchestrate(url: str, requests: int, concurrency: int, tokens: int) -> Figures:
    prompts = [(f"p{i}", list(range(i, i + 32))) for i in range(requests)]
    summary = run_load(Target(url, max_tokens=tokens), prompts, requests, Level(concurrency=concurrency)).summary
    if summary.failed or not (summary.ttft.p50 and summary.itl.p50 and summary.token_gap.p50):
        raise SystemExit(f"{summary.failed} of {summary.requests} requests failed")
    return Figures(summary.ttft.p50, summary.itl.p50, summary.token_gap.p50, summary.tok_s)


def agree(name: str, theirs: list[float], ours: list[float]) -> bool:
    ratio = stats.median(ours) / stats.median(theirs)
    low, high = stats.bootstrap_ratio_ci(ours, theirs)
    fine = abs(ratio - 1) <= TOLERANCE or low <= 1 <= high
    print(
        f"{name:12} SGLang {stats.median(theirs):.5g}  orchestrate {stats.median(ours):.5g}  "
        f"ratio {ratio:.4f} (95 % {low:.4f}–{high:.4f})  {'agrees' if fine else 'DIFFERS'}"
    )
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write every round to this file")
    options = parser.parse_args()
    python = os.environ.get("ENGINE_PYTHON", "")
    if not python:
        print("Set ENGINE_PYTHON to the interpreter of an environment that has SGLang.", file=sys.stderr)
        return 2
    load = (options.requests, options.concurrency, options.tokens)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    theirs: list[Figures] = []
    ours: list[Figures] = []
    try:
        url = f"http://127.0.0.1:{here.recv()}"
        for number in range(options.rounds):
            theirs.append(by_sglang(python, url, *load))
            ours.append(by_orchestrate(url, *load))
            print(f"round {number + 1}: SGLang {theirs[-1]}  orchestrate {ours[-1]}", flush=True)
    finally:
        server.terminate()
        server.join()
    if options.json:
        options.json.write_text(json.dumps({"sglang": [vars(f) for f in theirs], "ours": [vars(f) for f in ours]}))
    names = ("ttft_s", "itl_s", "token_gap_s", "tok_s")
    results = [agree(n, [getattr(f, n) for f in theirs], [getattr(f, n) for f in ours]) for n in names]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
