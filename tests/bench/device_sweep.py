"""The paired sweep of a shipped pair on a machine without SSH or systemd: starts the servers, then `orchestrate bench` by address.

    PYTHONPATH=engine python -m tests.bench.device_sweep --pair tiny-dense --budgets 15,32,64 --out DIR

Needs an interpreter with SGLang and the few packages of a sweep by address. One linear DFLASH server, and one DDTREE server
that switches among all budgets, or one per budget with --one-each. --cpu runs the same through sglang_cpu.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from models.servable import servable  # type: ignore[import-not-found]
from sglang_ddtree.bench.server import Server, ddtree, linear  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ("budgets", "pairs", "max_tokens", "loads")


def common(target: Path, cpu: bool, batch: int) -> list[str]:
    """What both arms share. A prefix cache would spare the second arm of a pair its prefill, so each row empties it."""
    base = ["--model-path", str(target), "--attention-backend", "intel_amx" if cpu else "fa3", "--enable-metrics"]
    if cpu:
        return base
    if "linear_num_value_heads" in (target / "config.json").read_text():
        base += ["--max-mamba-cache-size", "64"]  # else states so small fill the card
    return [
        *base, "--mem-fraction-static", "0.4", "--context-length", "2048", "--max-total-tokens", "40000",
        "--max-running-requests", str(batch), "--cuda-graph-max-bs-decode", str(batch), "--trust-remote-code", "--sleep-on-idle",
    ]  # fmt: skip


def start(options: argparse.Namespace, token: str) -> dict[str, Server]:
    """All servers at once, by name; their logs lie in the output folder."""
    pair, cpu = ROOT / "engine" / "models" / options.pair, options.cpu
    backend = "intel_amx" if cpu else "fa3"
    draft = str(pair / "draft")
    base = common(servable(pair / "target", options.out / "target"), options.cpu, options.batch)
    budgets = [int(part) for part in options.budgets.split(",")]
    arms: dict[str, tuple[list[str], dict[str, str]]] = {
        "linear": (linear(draft, backend), {}),
        "reference": ([], {}),  # without drafts: tells log-probabilities, which linear DFLASH of 0.5.16 does not
    }
    if options.one_each:
        arms |= {str(budget): (ddtree(draft, backend, budget + 1), {}) for budget in budgets}
    else:
        env = {"SGLANG_DDTREE_WIDTHS": ",".join(["chain", *map(str, budgets)]), "SGLANG_DDTREE_CONTROL_TOKEN": token}
        arms["all"] = (ddtree(draft, backend, max(budgets) + 1), env)
        spare = [int(part) for part in options.spare.split(",") if part]
        arms |= {str(budget): (ddtree(draft, backend, budget + 1), {}) for budget in spare}
    return {
        name: Server(name, base + more, options.port + i, options.out / f"server-{name}.log", env, cpu)
        for i, (name, (more, env)) in enumerate(arms.items())
    }


def wait(servers: dict[str, Server], seconds: float) -> dict[str, Server]:
    """Those that came up; the others are named with the end of their log."""
    end = time.monotonic() + seconds
    up = {name: server for name, server in servers.items() if server.wait(max(1.0, end - time.monotonic()))}
    for name in servers.keys() - up.keys():
        print(f"server {name} did not come up:\n{servers[name].tail(15)}", flush=True)
    return up


def sweep(options: argparse.Namespace, up: dict[str, Server], token: str) -> int:
    if "all" in up:
        for name in [name for name in up if name.isdecimal()]:
            up.pop(name).stop()
    trees = [
        s.url if name == "all" else f"{name}={s.url}" for name, s in up.items() if name == "all" or name.isdecimal()
    ]
    budgets = options.budgets if "all" in up else ",".join(name for name in up if name.isdecimal())
    command = [
        sys.executable, "-m", "orchestrator", "bench", "--linear-url", up["linear"].url, "--budgets", budgets,
        "--pairs", str(options.pairs), "--max-tokens", str(options.max_tokens), "--loads", options.loads,
        "--set", f"group_size={options.group_size}", "--set", f"seconds={options.seconds}", "--out", str(options.out), "--resume",
    ]  # fmt: skip
    for url in trees:
        command += ["--tree-url", url]
    if "reference" in up:
        command += ["--reference", up["reference"].url]
    env = dict(os.environ)
    if "all" in up:
        command += ["--control-token", "env:SWEEP_TOKEN"]
        env["SWEEP_TOKEN"] = token
    print(" ".join(command), flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, env=env, timeout=options.seconds + 40, check=False).returncode
    except subprocess.TimeoutExpired:
        print("the sweep did not end in time; its rows are kept, and count while these servers run", flush=True)
        return 124


def keep(options: argparse.Namespace) -> None:
    """The sweep's figures as a result document of the engine, which names device, versions and the code measured."""
    from sglang_ddtree.bench.report import write_result  # needs torch

    found = json.loads((options.out / "bench.json").read_text())
    told = {key: found[key] for key in ("verdict", "settings", "skipped")}
    log = f"{options.result.stem}.log"
    write_result(options.result, "serve", [{"pair": options.pair, **arm} for arm in found["arms"]], log=log, **told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="tiny-dense")
    parser.add_argument("--budgets", default="15,16,22,32,64,128,256,512,1024")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--group-size", type=int, default=2)
    parser.add_argument("--loads", default="1")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--result", type=Path, help="result document; default: result.json in the folder")
    parser.add_argument("--seconds", type=float, default=600, help="time for the sweep itself")
    parser.add_argument("--start-seconds", type=float, default=240, help="time for the servers to come up")
    parser.add_argument("--after", type=Path, help="measure only once this file exists (another job has left the GPU)")
    parser.add_argument("--batch", type=int, default=8, help="requests that a server can run at once")
    parser.add_argument("--port", type=int, default=24500)
    parser.add_argument("--one-each", action="store_true", help="a server per budget instead of one that switches")
    parser.add_argument(
        "--spare", default="", help="budgets with servers of their own, used if the switching one fails"
    )
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.result = options.result or options.out / "result.json"
    token = secrets.token_hex(16)
    servers = start(options, token)
    try:
        up = wait(servers, options.start_seconds)
        while options.after and not options.after.exists():
            time.sleep(0.2)
        if "linear" not in up or not up.keys() - {"linear", "reference"}:
            return 1
        code = sweep(options, up, token)
        keep(options)
        return code
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
