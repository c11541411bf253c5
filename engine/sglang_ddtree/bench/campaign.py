"""Everything a server with DDTREE must do right, on real servers with the shipped pairs: one command on a GPU host.

    python -m sglang_ddtree.bench.campaign engine/models --json FILE --gpus 0,1

Each pair is served by several servers at once: without speculation (the reference), with linear DFLASH, with DDTREE, and
with DDTREE under one changed switch each.  Every server is asked as soon as it is up, and results are written after every
check; what there was no time for is written down as not run.  --cpu runs what makes sense without a GPU, through sglang_cpu.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import campaign_checks as checks
from . import campaign_draws as draws
from . import campaign_long as long
from .campaign_checks import IdLists, timed
from .campaign_plan import (
    BATCH,
    CHUNK,
    CONTEXT,
    HELD,
    MAIN,
    NARROW,
    PROMPT_SETS,
    REFUSED,
    SEEDED,
    TWO_GPUS,
    VARIANTS,
    Plan,
    arms_of,
    target_for,
)
from .report import write_result
from .serve import measure_speed, prompts
from .server import leave_on_sigterm

DRIFT = "drift of a recurrent state"
COMPARED = ("eager", "no overlap")  # asked once more at the end, beside the main server


class Campaign:
    """Collects rows, keeps to the time, writes as it goes; several threads use it."""

    def __init__(
        self, seconds: float, file: Path | None, left_out: tuple[str, ...] = (), only: tuple[str, ...] = ()
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.deadline = time.monotonic() + seconds
        self.file, self.left_out, self.only = file, left_out, only
        self._lock = threading.Lock()

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def wants(self, check: str) -> bool:
        """Whether this run is to have a check at all."""
        return not self.only or check.startswith(self.only)

    def add(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.rows.append(row)
            print(json.dumps(row)[:1500], flush=True)
            if self.file:
                write_result(self.file, "campaign", self.rows)

    def check(self, plan: Plan, name: str, run: Callable[[], dict[str, Any]], needs: float = 8) -> None:
        """Run one check if ``needs`` seconds are left, and keep its row."""
        head = {"pair": plan.label, "check": name}
        if not self.wants(name):
            return
        if f"{plan.label}:{name}".startswith(self.left_out or ("\0",)):
            self.add({**head, "ok": None, "not_run": "left out of this run"})
        elif self.left() < needs:
            self.add({**head, "ok": None, "not_run": "no time was left"})
        else:
            self.add({**head, **timed(run)})

    def up(self, plan: Plan, arm: str) -> bool:
        """Wait for a server as long as there is time; one that does not come up is a failed row."""
        server = plan.servers[arm]
        if server.wait(max(self.left(), 1)):
            return True
        why = {"ok": None, "not_run": "not up when the time was over"} if server.alive() else {"ok": False}
        self.add({"pair": plan.label, "check": f"start: {arm}", **why, "log": server.tail(4)[-600:]})
        return False


def check_pair(campaign: Campaign, plan: Plan, arms: list[str], logs: Path, port: int, asked: IdLists) -> None:
    """Start a pair's servers and ask each everything that concerns it, as soon as it is up."""
    others = [arm for arm in arms if arm not in MAIN]
    plan.start([*(arm for arm in arms if arm in MAIN), *others], logs, port)
    alive = {arm for arm in arms if arm in MAIN and campaign.up(plan, arm)}
    if {"reference", "tree"} <= alive:
        # The seeded reference is asked, and its failed start told, by the seeded tree's thread.
        threads = [
            threading.Thread(target=variant_checks, args=(campaign, plan, arm, asked))
            for arm in others
            if arm != SEEDED[0]
        ]
        for thread in threads:
            thread.start()
        main_checks(campaign, plan, alive, asked)
        for thread in threads:
            thread.join()
        same_as_tree(campaign, plan, asked[:6])
    plan.stop(keep=MAIN)


def main_checks(campaign: Campaign, plan: Plan, alive: set[str], asked: IdLists) -> None:
    """What one server with DDTREE is asked, and linear DFLASH beside it."""
    reference, few = plan.servers["reference"], asked[:6]
    both = {name: plan.servers[name] for name in ("tree", "linear") if name in alive}
    room = CONTEXT - max(len(ids) for ids in few) - 8

    def check(name: str, run: Callable[[], dict[str, Any]], needs: float = 8) -> None:
        campaign.check(plan, name, run, needs)

    if "linear" in both:
        check("greedy: linear", lambda: checks.greedy(reference, both["linear"], asked, 96))
    step_checks(campaign, plan, "tree", asked)
    if "linear" in both:
        check(
            "multi-turn over the prefix cache: linear",
            lambda: checks.turns(reference, both["linear"], few[:4], asked[-1][:12]),
        )
        # No faults of ours where these fail: linear DFLASH's rows are as narrow as those of the control.
        run = lambda: {**long.context_limit(reference, both["linear"], asked, CONTEXT), "ok": None}  # noqa: E731
        check("yardstick: linear at the context limit", run)
        run = lambda: {**long.long_texts(reference, both["linear"], few, room), "ok": None}  # noqa: E731
        check("yardstick: long texts of linear", run)
    check("yardstick: the reference against itself", lambda: checks.own_noise(reference, asked))


def step_checks(campaign: Campaign, plan: Plan, arm: str, asked: IdLists) -> None:
    """What every server with DDTREE is asked that nobody else is asking."""
    reference, tree, few = plan.servers["reference"], plan.servers[arm], asked[:6]

    def check(name: str, run: Callable[[], dict[str, Any]], needs: float = 8) -> None:
        campaign.check(plan, f"{name}: {arm}", run, needs)

    check("greedy", lambda: checks.greedy(reference, tree, asked, 96))
    check("context limit", lambda: long.context_limit(reference, tree, asked, CONTEXT))
    long_ids = (asked[0] * 20)[: 4 * CHUNK + 37]
    check("chunked prefill", lambda: checks.greedy(reference, tree, [long_ids, long_ids[5:-3]], 64))
    check("multi-turn over the prefix cache", lambda: checks.turns(reference, tree, few[:4], asked[-1][:12]))
    wide = 8 if plan.on_cpu else BATCH
    lengths = [16] * (wide - 12 if wide > 12 else 3) + [40] * (11 if wide > 12 else 4) + [120]
    many = [asked[i % len(asked)] for i in range(wide)]
    check(f"batch {wide} to 1", lambda: checks.together(reference, tree, many, lengths))
    check("stop tokens and strings", lambda: checks.stops(reference, tree, few[:4]))
    check("penalties and biases", lambda: checks.penalties(reference, tree, asked))
    total, gone = (40, 10) if plan.on_cpu else (200, 50)
    check(f"{total} requests, {gone} aborted", lambda: checks.aborts(reference, tree, asked, total, gone), needs=15)
    room = CONTEXT - max(len(ids) for ids in few) - 8
    check("long texts", lambda: long.long_texts(reference, tree, few, room))
    if plan.on_cpu:
        row = {"pair": plan.label, "check": "sampling", "ok": None, "not_run": "SGLang's DFLASH is greedy on CPU"}
        campaign.add(row)
    else:
        check("greedy beside sampled", lambda: checks.beside_sampled(reference, tree, asked))
        check("sampling", lambda: draws.sampling(reference, tree, asked[0], 1536), needs=20)


def variant_checks(campaign: Campaign, plan: Plan, arm: str, asked: IdLists) -> None:
    """What is asked of a server that differs from the main one in one switch, has a broken draft, or must not start."""
    servers = plan.servers
    if arm in REFUSED:
        campaign.check(plan, arm, lambda: checks.refused(servers[arm], REFUSED[arm][2], campaign.left()))
        return
    if not campaign.up(plan, arm):
        return
    reference: Any = servers["reference"]
    server = servers[arm]
    if arm in VARIANTS:
        campaign.check(plan, f"greedy: {arm}", lambda: checks.greedy(reference, server, asked, 96))
        campaign.check(
            plan, f"context limit: {arm}", lambda: long.context_limit(reference, server, asked, CONTEXT), needs=15
        )
    elif arm in HELD:
        if arm == TWO_GPUS:
            step_checks(campaign, plan, arm, asked)
        run = lambda: long.every_width(reference, server, plan.token, asked, CONTEXT)  # noqa: E731
        campaign.check(plan, f"every width of one server: {arm}", run, needs=20)
    elif arm == NARROW:
        run = lambda: long.narrow_rows(reference, server, asked, CONTEXT)  # noqa: E731
        campaign.check(plan, "control: a narrow page table changes a neighbour", run, needs=15)
    elif arm == "broken draft":
        campaign.check(plan, "draft of NaN", lambda: checks.broken_draft(reference, server, asked))
    elif arm == SEEDED[1] and campaign.up(plan, SEEDED[0]):
        campaign.check(plan, "seeds", lambda: draws.seeds(servers[SEEDED[0]], server, asked[:6]))
        servers[SEEDED[0]].stop()
    if arm not in COMPARED:
        server.stop()  # an idle scheduler still spins, and the others need the processors


def same_as_tree(campaign: Campaign, plan: Plan, asked: IdLists) -> None:
    """Graphs and overlap change no acceptance; asked when nobody else asks the main server."""
    tree = plan.servers["tree"]
    for name in COMPARED:
        if name in plan.servers and plan.servers[name].wait(0.5):
            run = lambda s=plan.servers[name]: checks.equal_acceptance(tree, s, asked)  # noqa: E731
            campaign.check(plan, f"equal acceptance: {name}", run)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.campaign")
    parser.add_argument("models", type=Path, help="the folder that holds tiny-dense and tiny-hybrid")
    parser.add_argument("--pairs", default="tiny-dense,tiny-hybrid")
    parser.add_argument("--arms", help="comma-separated; the default is all that this device can run")
    parser.add_argument("--leave-out", default="", help="PAIR:CHECK,... (a check by the first letters of its name)")
    parser.add_argument(
        "--only", default="", help="CHECK,... by the first letters of its name; the default is all of them"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=420, help="when to stop beginning new checks")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the speed rows; 0 leaves them out")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--gpus", default="", help="0,1: a GPU per pair, and servers on both; default: the first")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    leave_on_sigterm()
    out = Path(os.environ.get("OUT", "."))
    listed = [tuple(filter(None, text.split(","))) for text in (options.leave_out, options.only)]
    campaign = Campaign(options.seconds, options.json, *listed)
    plans, threads = [], []
    # In a process of its own: its arithmetic must not hold up the requests.
    drift = None if options.cpu or not campaign.wants(DRIFT) else start_drift()
    try:
        for i, label in enumerate(options.pairs.split(",")):
            folder = options.models / label
            gpus = options.gpus.split(",")
            plan = Plan(
                label, target_for(folder), str(folder / "draft"), options.width, options.cpu, gpus[i % len(gpus)],
            )  # fmt: skip
            plans.append(plan)
            sets = [options.models / "prompts" / f"{name}.jsonl" for name in PROMPT_SETS]
            asked = [ids[:400] for ids in prompts(plan.target, sets, 3)]
            arms = options.arms.split(",") if options.arms else arms_of(options.cpu, "hybrid" in label, len(gpus))
            arms = [arm for arm in arms if not f"{label}:start: {arm}".startswith(campaign.left_out or ("\0",))]
            if missing := sorted({"reference", "tree"} - set(arms)):
                parser.error(
                    f"The arms of {label} lack {' and '.join(missing)}, which every check compares with: name them too."
                )
            args = (campaign, plan, arms, out, options.port + 1000 * i, asked)
            threads.append(threading.Thread(target=check_pair, args=args))
            threads[-1].start()
            if options.cpu:
                threads[-1].join()  # two pairs at once are too much for a small machine
        if drift is not None:
            campaign.check(plans[-1], DRIFT, lambda: drift_result(drift, campaign.left()), 1)
        for thread in threads:
            thread.join()
        for plan in plans if options.rounds else []:
            speed_rows(campaign, plan, asked, options.rounds)
    finally:
        for plan in plans:
            plan.stop()
        if drift is not None and drift.poll() is None:
            drift.kill()
    return 1 if any(row.get("ok") is False for row in campaign.rows) else 0


def start_drift() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sglang_ddtree.bench.campaign_drift"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def drift_result(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    text, _ = process.communicate(timeout=max(seconds, 1))
    if process.returncode:
        return {"ok": False, "error": text[-600:]}
    return dict(json.loads(text.strip().splitlines()[-1]))


def speed_rows(campaign: Campaign, plan: Plan, asked: IdLists, rounds: int) -> None:
    """Tokens per second of the main servers, with all others gone."""
    arms = {name: plan.servers[name] for name in ("linear", "tree") if name in plan.servers}
    if len(arms) < 2 or campaign.left() < 15:
        campaign.add({"pair": plan.label, "check": "speed", "ok": None, "not_run": "no time was left"})
        return
    for row in measure_speed(arms, asked, 192, rounds, sizes=(1, 8)):
        campaign.add({"pair": plan.label, "ok": True, **row})


if __name__ == "__main__":
    sys.exit(main())
