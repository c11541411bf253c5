"""One DDTREE server with several widths beside upstream linear DFLASH: equal ids under switches, tokens/s of every width.

    python -m sglang_ddtree.bench.widths engine/models --pair tiny-hybrid --widths chain,15,31,63 --json FILE --seconds 120

The server is switched through its own loopback call while requests run.  Every width and the adaptive choice are measured
against linear DFLASH in turn; a row's ratio is that of one turn, so a difference in load can't favour one of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import secrets
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .campaign_plan import PROMPT_SETS, target_for
from .report import write_result
from .serve import classified, prompts, speed
from .server import Server, ddtree, leave_on_sigterm, linear

SIZES = (1, 2, 4, 8, 16, 32)


class Switch:
    """The switch of one server."""

    def __init__(self, server: Server, token: str) -> None:
        self.server, self.token = server, token

    def state(self) -> Any:
        return self._ask("GET")

    def set(self, width: str) -> Any:
        return self._ask("PUT", json.dumps({"width": int(width) if width.isdecimal() else width}).encode())

    def _ask(self, method: str, body: bytes | None = None) -> Any:
        headers = {"x-ddtree-token": self.token, "Content-Type": "application/json"}
        request = urllib.request.Request(self.server.url + "/ddtree/width", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def ids_under_switches(
    reference: Server, arm: Server, widths: Switch, labels: list[str], asked: list[list[int]], tokens: int
) -> dict[str, Any]:
    """One batch that runs while the width changes every few milliseconds; every difference is judged by the reference."""
    before, done = widths.state(), threading.Event()
    switches = 0

    def keep_switching() -> None:
        nonlocal switches
        for label in itertools.cycle(labels):
            widths.set(label)
            switches += 1
            if done.wait(0.005):
                return

    thread = threading.Thread(target=keep_switching)
    thread.start()
    try:
        got = [answer["output_ids"] for answer in arm.generate(asked, tokens)]
        got += [arm.generate(ids, tokens)["output_ids"] for ids in asked[:4]]
    finally:
        done.set()
        thread.join()
    twice = asked + asked[:4]
    wanted = [reference.generate(ids, tokens)["output_ids"] for ids in asked]
    found = classified(reference, twice, wanted + wanted[:4], got)
    steps = {
        label: count["steps"] - before["counts"][label]["steps"] for label, count in widths.state()["counts"].items()
    }
    return {"ok": not found["different"], "switches": switches, "steps_by_width": steps, **found}


def speed_rows(
    line: Server,
    arm: Server,
    widths: Switch,
    labels: list[str],
    asked: list[list[int]],
    tokens: int,
    rounds: int,
    until: float,
) -> Iterator[dict[str, Any]]:
    """Tokens per second of every width, and of linear DFLASH, at each batch size until the time is up."""
    for bs in SIZES:
        if time.monotonic() > until:
            return
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("linear", *labels)}
        for label in labels:  # graphs, caches and the controller's estimates are warm before anything counts
            widths.set(label)
            speed(arm, asked, bs, tokens * (3 if label == "auto" else 1) // 2)
        speed(line, asked, bs, tokens)
        for turn in range(rounds):
            if time.monotonic() > until:
                break
            prompts_now = asked[turn:] + asked[:turn]
            taken["linear"].append(speed(line, prompts_now, bs, tokens))
            for label in labels:
                widths.set(label)
                taken[label].append(speed(arm, prompts_now, bs, tokens))
        for name, values in taken.items():
            if values:
                ratios = [mine[0] / other[0] for mine, other in zip(values, taken["linear"], strict=True)]
                low, high = interval(ratios)
                yield {
                    "check": "speed", "width": name, "bs": bs, "tokens_per_s": statistics.median(rate for rate, _ in values),
                    "tokens_per_step": statistics.mean(length for _, length in values),
                    "ratio_to_linear": statistics.median(ratios), "ci95_low": low, "ci95_high": high, "ratios": sorted(ratios),
                }  # fmt: skip


def interval(ratios: list[float], draws: int = 4000) -> tuple[float, float]:
    """95 % interval of the geometric mean, by resampling the turns."""
    source, logs = random.Random(0), [math.log(ratio) for ratio in ratios]
    means = sorted(statistics.fmean(source.choices(logs, k=len(logs))) for _ in range(draws))
    return math.exp(means[draws * 25 // 1000]), math.exp(means[draws * 975 // 1000 - 1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.widths")
    parser.add_argument("models", type=Path)
    parser.add_argument("--pair", default="tiny-hybrid")
    parser.add_argument("--widths", default="chain,15,31,63")
    parser.add_argument("--backend", default="fa3")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--labels", help="the widths whose speed is measured; the default is all and auto")
    parser.add_argument("--seconds", type=float, default=120, help="for measuring, once the servers are up")
    parser.add_argument("--start", type=float, default=400, help="seconds the servers may take to answer")
    parser.add_argument("--after", type=Path, help="measure only once this file exists (another job has left the GPU)")
    parser.add_argument("--memory", default="0.25", help="SGLang's --mem-fraction-static of each server")
    parser.add_argument("--port", type=int, default=26000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    leave_on_sigterm()
    out = Path(os.environ.get("OUT", "."))
    folder = options.models / options.pair
    target, draft = target_for(folder), str(folder / "draft")
    sets = [options.models / "prompts" / f"{name}.jsonl" for name in PROMPT_SETS]
    asked = [ids[:300] for ids in prompts(target, sets, 3)]
    labels = options.widths.split(",")
    token = secrets.token_hex(16)
    base = [
        "--model-path", target, "--attention-backend", options.backend, "--mem-fraction-static", options.memory,
        "--context-length", "1024", "--max-total-tokens", "60000", "--max-mamba-cache-size", "128", "--max-running-requests", "32",
        "--cuda-graph-max-bs-decode", "32", "--trust-remote-code",
    ]  # fmt: skip
    widest = 1 + max(int(label) for label in labels if label.isdecimal())
    env = {"SGLANG_DDTREE_WIDTHS": options.widths, "SGLANG_DDTREE_CONTROL_TOKEN": token}
    asks = {
        "reference": (base, {}),
        "linear": (base + linear(draft, options.backend), {}),
        "widths": (base + ddtree(draft, options.backend, widest), env),
    }
    servers: dict[str, Server] = {}
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        """Written after every row, so that a lease that ends early loses only what was running."""
        rows.append(row)
        print(json.dumps({key: value for key, value in row.items() if key != "ratios"})[:800], flush=True)
        if options.json:
            write_result(options.json, "serve", rows, pair=options.pair, backend=options.backend, widths=options.widths)

    try:
        for i, (name, (arguments, extra)) in enumerate(asks.items()):
            servers[name] = Server(name, arguments, options.port + 20 * i, out / f"widths-{name}.log", env=extra)
        begun = time.monotonic()
        for name, server in servers.items():
            if not server.wait(max(begun + options.start - time.monotonic(), 1)):
                print(name, "did not start:", server.tail(30), flush=True)
                keep({"check": "start", "server": name, "ok": False, "error": server.tail(3)})
                return 1
            print(name, f"ready after {time.monotonic() - begun:.1f} s", flush=True)
        while options.after and not options.after.exists():
            time.sleep(0.2)
        until = time.monotonic() + options.seconds
        switch = Switch(servers["widths"], token)
        found = ids_under_switches(servers["reference"], servers["widths"], switch, labels, asked, 96)
        keep({"check": "ids under switches", **found})
        servers.pop("reference").stop()
        timed = options.labels.split(",") if options.labels else [*labels, "auto"]
        arms = servers["linear"], servers["widths"]
        for row in speed_rows(*arms, switch, timed, asked, options.tokens, options.rounds, until):
            keep(row)
        keep({"check": "controller", **switch.state()})
    finally:
        for server in servers.values():
            server.stop()
    return 1 if any(row.get("ok") is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
