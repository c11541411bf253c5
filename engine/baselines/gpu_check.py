"""Real servers on this machine held against offline baselines: the chain and every budget, one request at a time.

    python -m baselines.gpu_check --pairs tiny-dense,tiny-hybrid --json h200-oracle.json

Prints one line per pair and mode and every difference with its margins. Exit code 1 when one is above the bound, 2 for bad
input. Needs an environment with SGLang and the DDTree plugin; ``--cpu --bound 0.001 --at-once 1`` without a GPU.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .baseline import Baseline, load_baseline
from .errors import BaselineError
from .hashing import model_hash
from .parity import Bounds, ParityReport, check_counts, check_trace, load_trace

ENGINE = Path(__file__).resolve().parents[1]
MODELS = ENGINE / "models"
SHIPPED = Path(__file__).resolve().parent / "data"
MODES = ("chain", "15", "16", "22", "32", "64", "128", "256")
START_S = 240.0
PORTS_APART = 20  # SGLang takes neighbouring ports too


@dataclass(frozen=True)
class Pair:
    """A pair with its baseline; ``served`` is the target's folder that this SGLang can load."""

    name: str
    served: Path
    draft: Path
    baseline: Baseline


@dataclass(frozen=True)
class Plan:
    """How every server is started and what counts as a tie."""

    backend: str
    on_cpu: bool
    extra: tuple[str, ...]
    bounds: Bounds
    new_tokens: int
    logs: Path
    deadline: float


def load_pair(name: str, baselines: Path, new_tokens: int, scratch: Path) -> Pair:
    """Check that the baseline was made with these weights; a hybrid is converted for SGLang lines without its class."""
    from models.servable import servable

    folder = MODELS / name
    baseline = load_baseline(baselines / f"{name}.json")
    baseline.require_models(model_hash(folder / "target"), model_hash(folder / "draft"))
    return Pair(name, servable(folder / "target", scratch / name), folder / "draft", baseline.shortened(new_tokens))


def arguments(pair: Pair, mode: str, plan: Plan) -> list[str]:
    """Server arguments: small pools, so that many servers fit on one GPU."""
    from sglang_ddtree.bench.server import ddtree, linear

    draft = str(pair.draft)
    engine = linear(draft, plan.backend) if mode == "chain" else ddtree(draft, plan.backend, int(mode) + 1)
    pools = () if plan.on_cpu else (
        "--max-total-tokens", "8192", "--max-running-requests", "2", "--mem-fraction-static", "0.8",
        "--cuda-graph-max-bs-decode", "1", "--disable-radix-cache", "--sleep-on-idle", "--trust-remote-code",
    )  # fmt: skip
    return [
        "--model-path", str(pair.served), "--attention-backend", plan.backend, "--context-length", "2048",
        *pools, *engine, *plan.extra,
    ]  # fmt: skip


def serve(pair: Pair, mode: str, plan: Plan, port: int) -> dict[str, Any]:
    """One row: the report of one server on all prompts of the pair's baseline; "error" where it did not serve."""
    from sglang_ddtree.bench.server import Server

    row: dict[str, Any] = {"pair": pair.name, "mode": mode}
    if time.monotonic() > plan.deadline:
        return row | {"error": "not started: the deadline had passed"}
    name = f"{pair.name}-{mode}"
    trace, log = plan.logs / f"{name}.trace.jsonl", plan.logs / f"{name}.log"
    trace.unlink(missing_ok=True)
    env = {"OMP_NUM_THREADS": "1"} | ({} if mode == "chain" else {"SGLANG_DDTREE_TRACE": str(trace)})
    server = Server(name, arguments(pair, mode, plan), port, log, env, plan.on_cpu)
    begun = time.monotonic()
    try:
        if not server.wait(min(START_S, max(1.0, plan.deadline - begun))):
            return row | {"error": f"did not start: {server.tail(12)}"}
        row["start_s"] = round(time.monotonic() - begun, 1)
        answers = {
            one.id: ask(server, one.id, one.prompt_ids, pair.baseline.new_tokens) for one in pair.baseline.prompts
        }
    except OSError as error:
        return row | {"error": f"stopped answering ({error}): {server.tail(12)}"}
    finally:
        server.stop()
    return row | _judged(report_on(pair.baseline, mode, answers, trace, plan.bounds), pair.baseline, answers)


def ask(server: Any, rid: str, ids: list[int], tokens: int) -> dict[str, Any]:
    """One greedy request known to the engine's trace by the prompt's id."""
    body = {
        "rid": rid, "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }  # fmt: skip
    return dict(server.post("/generate", body))


def report_on(
    baseline: Baseline, mode: str, answers: dict[str, dict[str, Any]], trace: Path, bounds: Bounds
) -> ParityReport:
    """Chain by verify counts, trees by the trace."""
    outputs = {name: list(one["output_ids"])[: baseline.new_tokens] for name, one in answers.items()}
    if mode == "chain":
        counts = {name: one["meta_info"]["spec_verify_ct"] for name, one in answers.items()}
        return check_counts(baseline, counts, mode, bounds, outputs)
    steps = {rid: lines for rid, lines in load_trace(trace).items() if rid in outputs}
    return check_trace(baseline, steps, mode, bounds, outputs)


def _judged(report: ParityReport, baseline: Baseline, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The report's figures, tokens per step of every prompt, and the margins of what differed."""
    tokens = baseline.new_tokens
    same = sum(answers[one.id]["output_ids"][:tokens] == one.greedy_ids[:tokens] for one in baseline.prompts)
    figures = {key: value for key, value in asdict(report).items() if key not in ("mode", "differences")}
    return {
        **figures, "ok": report.ok, "same_text": same, "explained": len(report.differences) - len(report.faults),
        "faults": len(report.faults), "differences": [asdict(one) for one in report.differences],
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """One line for a person."""
    head = f"{row['pair']:<12} {row['mode']:>5}  "
    if "error" in row:
        return head + f"FAILED {row['error']}"
    return head + (
        f"oracle {row['baseline_tokens_per_step']:.4f}  engine {row['engine_tokens_per_step']:.4f}  "
        f"{row['prompts']} prompts ({row['same_text']} same text), {row['steps']} steps compared, "
        f"{row['explained']} near-ties, {row['faults']} faults"
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m baselines.gpu_check", description=__doc__)
    parser.add_argument("--pairs", default="tiny-dense,tiny-hybrid")
    parser.add_argument("--baselines", type=Path, default=SHIPPED, help="folder with PAIR.json")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--backend", default="fa3")
    parser.add_argument("--cpu", action="store_true", help="the CPU engine, in float32")
    parser.add_argument("--server", default="", help="further arguments of every server, as one string")
    parser.add_argument("--bound", type=float, default=0.25, help="logit margin that counts as a tie")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--at-once", type=int, default=8, help="servers at a time")
    parser.add_argument("--port", type=int, default=32000)
    parser.add_argument("--deadline", type=float, default=1800, help="start nothing after this many seconds")
    parser.add_argument("--logs", type=Path, help="where server logs and traces stay; default: nowhere")
    parser.add_argument("--json", type=Path, help="result file, written again after every server")
    return parser.parse_args(argv)


def run(args: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """All rows, in the order asked for; the result file grows with every finished server."""
    logs = args.logs or scratch
    logs.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        "intel_amx" if args.cpu else args.backend,
        args.cpu,
        tuple(shlex.split(args.server)),
        Bounds.of(args.bound),
        args.new_tokens,
        logs,
        time.monotonic() + args.deadline,
    )
    pairs = [load_pair(name, args.baselines, args.new_tokens, scratch) for name in args.pairs.split(",")]
    jobs = [(pair, mode) for pair in pairs for mode in args.modes.split(",")]
    rows: dict[int, dict[str, Any]] = {}
    with ThreadPoolExecutor(args.at_once) as pool:
        started = {
            pool.submit(serve, pair, mode, plan, args.port + PORTS_APART * n): n for n, (pair, mode) in enumerate(jobs)
        }
        for done in as_completed(started):
            rows[started[done]] = row = done.result()
            print(line(row), flush=True)
            for difference in row.get("differences", ()):
                print(f"    {difference['message']}", flush=True)
            if args.json:
                _write(args, plan, [rows[n] for n in sorted(rows)], pairs)
    return [rows[n] for n in sorted(rows)]


def _write(args: argparse.Namespace, plan: Plan, rows: list[dict[str, Any]], pairs: list[Pair]) -> None:
    from sglang_ddtree.bench.report import write_result

    made = {pair.name: {"made_with": pair.baseline.made_with, "target": pair.baseline.target} for pair in pairs}
    facts: dict[str, Any] = {"backend": plan.backend, "bound": plan.bounds.target, "draft_bound": plan.bounds.draft}
    kept = [row | {"differences": [_figures(one) for one in row.get("differences", ())]} for row in rows]
    write_result(args.json, "oracle", kept, **facts, new_tokens=plan.new_tokens, baselines=made)


def _figures(difference: dict[str, Any]) -> dict[str, Any]:
    """Without the sentence, which repeats the figures and is printed."""
    return {name: value for name, value in difference.items() if name != "message"}


def main(argv: list[str] | None = None) -> int:
    """0: every difference is explained; 1: one is not, or a server did not serve; 2: bad input."""
    args = parse(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
            rows = run(args, Path(scratch))
    except BaselineError as error:
        print(str(error), file=sys.stderr)
        return 2
    return 0 if all(row.get("ok") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
