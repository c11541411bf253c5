"""Everything a server with DDTREE must do right, on real servers with the shipped pairs: one command on a GPU host.

    python -m sglang_ddtree.bench.campaign engine/models --json FILE --seconds 240

Each pair is served by several servers at once: without speculation (the reference), with linear DFLASH, with DDTREE, and
with DDTREE under one changed switch each.  Results are written after every check; a check for which no time is left is
written down as not run.  On a machine without a GPU --cpu runs what makes sense there through sglang_cpu.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import campaign_checks as checks
from .campaign_checks import IdLists, timed
from .report import write_result
from .serve import measure_speed, prompts
from .server import Server, ddtree, linear

CONTEXT = 1024
CHUNK = 128
BATCH = 32
PROMPT_SETS = ("code", "chat", "verbatim", "math")
# Switches that must not change a text, each on a server of its own.
VARIANTS: dict[str, list[str]] = {
    "eager": ["--disable-cuda-graph"],
    "no overlap": ["--disable-overlap-schedule"],
    "triton": [],
    "page 16": ["--page-size", "16"],
    "16 rows": [],
}
MAIN = ("reference", "linear", "tree")
SEEDED = ("seeded reference", "seeded tree")


@dataclass
class Plan:
    """One pair: folders, widths and the servers that are asked."""

    label: str
    target: str
    draft: str
    width: int
    on_cpu: bool
    tp: int = 1
    servers: dict[str, Server] = field(default_factory=dict)

    def arguments(self, arm: str) -> list[str]:
        backend = "intel_amx" if self.on_cpu else ("triton" if arm == "triton" else "fa3")
        base = ["--model-path", self.target, "--attention-backend", backend, "--context-length", str(CONTEXT)]
        if not self.on_cpu:
            base += [
                "--mem-fraction-static", "0.3", "--max-total-tokens", "60000", "--max-running-requests", str(BATCH),
                "--cuda-graph-max-bs-decode", str(BATCH), "--chunked-prefill-size", str(CHUNK), "--trust-remote-code",
            ]  # fmt: skip
        if "hybrid" in self.label and not self.on_cpu:
            base += ["--max-mamba-cache-size", "256"]  # else states so small fill the card
        if self.tp > 1 and arm != "reference":
            base += ["--tp-size", str(self.tp), "--disable-custom-all-reduce"]
        if arm in SEEDED:
            base.append("--enable-deterministic-inference")
        if arm in ("reference", "seeded reference"):
            # With overlap SGLang's own penalties are one token late.
            return [*base, "--disable-overlap-schedule"]
        if arm == "linear":
            return base + linear(self.draft, backend)
        draft = self.broken_draft() if arm == "broken draft" else self.draft
        extra = ["--enable-metrics"] if arm == "broken draft" else VARIANTS.get(arm, [])
        return base + ddtree(draft, backend, 16 if arm == "16 rows" else self.width) + extra

    def broken_draft(self) -> str:
        """A copy of the draft whose last norm is NaN, so that every hidden state it gives is."""
        import torch
        from safetensors.torch import load_file, save_file

        folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"broken-draft-{self.label}-{os.getpid()}"
        shutil.copytree(self.draft, folder, dirs_exist_ok=True)
        for file in folder.glob("*.safetensors"):
            weights = load_file(file)
            names = [name for name in weights if name in ("norm.weight", "model.norm.weight")]
            if not names:
                raise ValueError(f"{file} has no final norm to break: look for its name in the draft's weights.")
            for name in names:
                weights[name] = torch.full_like(weights[name], torch.nan)
            save_file(weights, file, metadata={"format": "pt"})
        return str(folder)

    def start(self, arms: list[str], logs: Path, port: int) -> None:
        for i, arm in enumerate(arms):
            log = logs / f"{self.label}-{arm.replace(' ', '-')}.log"
            self.servers[arm] = Server(arm, self.arguments(arm), port + 20 * i, log, on_cpu=self.on_cpu)

    def await_start(self, campaign: Campaign, arms: list[str]) -> None:
        """Wait for servers; one that does not come up is a failed row."""
        for name in arms:
            server = self.servers[name]
            if not server.wait(min(400 if self.on_cpu else 120, max(campaign.left(), 1))):
                late = server.alive() and campaign.left() <= 0
                why = {"ok": None, "not_run": "not up when the time was over"} if late else {"ok": False}
                campaign.add({"pair": self.label, "check": f"start: {name}", **why, "log": server.tail(4)[-600:]})
                server.stop()
                self.servers.pop(name, None)

    def stop(self, keep: tuple[str, ...] = ()) -> None:
        for name in [name for name in self.servers if name not in keep]:
            self.servers.pop(name).stop()


class Campaign:
    """Collects rows, keeps to the time, writes as it goes; two pairs use it from two threads."""

    def __init__(self, seconds: float, file: Path | None, left_out: tuple[str, ...] = ()) -> None:
        self.rows: list[dict[str, Any]] = []
        self.deadline = time.monotonic() + seconds
        self.file, self.left_out = file, left_out
        self._lock = threading.Lock()

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def add(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.rows.append(row)
            print(json.dumps(row)[:1500], flush=True)
            if self.file:
                write_result(self.file, "campaign", self.rows)

    def check(self, plan: Plan, name: str, run: Callable[[], dict[str, Any]], needs: float = 10) -> None:
        """Run one check if ``needs`` seconds are left, and keep its row."""
        head = {"pair": plan.label, "check": name}
        if f"{plan.label}:{name}".startswith(self.left_out or ("\0",)):
            self.add({**head, "ok": None, "not_run": "left out of this run"})
        elif self.left() < needs:
            self.add({**head, "ok": None, "not_run": "no time was left"})
        else:
            self.add({**head, **timed(run)})


def arms_of(on_cpu: bool, hybrid: bool) -> list[str]:
    """Everything this device runs; seeds once, since they have nothing to do with recurrent layers."""
    extra = [] if on_cpu else [*VARIANTS, *(() if hybrid else SEEDED)]
    return [*MAIN, *extra, "broken draft"]


def check_pair(campaign: Campaign, plan: Plan, arms: list[str], logs: Path, port: int, asked: IdLists) -> None:
    """Start a pair's servers and ask them everything; the variants start while the main ones are asked."""
    main_arms = [arm for arm in arms if arm in MAIN]
    others = [arm for arm in arms if arm not in MAIN]
    plan.start(main_arms, logs, port)
    plan.await_start(campaign, main_arms)
    plan.start(others, logs, port + 100)
    servers = plan.servers
    if "reference" in servers and "tree" in servers:
        main_checks(campaign, plan, asked)
        plan.await_start(campaign, others)
        variant_checks(campaign, plan, asked)
    plan.stop(keep=MAIN)


def main_checks(campaign: Campaign, plan: Plan, asked: IdLists) -> None:
    """What one server with DDTREE is asked."""
    reference, tree, few = plan.servers["reference"], plan.servers["tree"], asked[:6]

    def check(name: str, run: Callable[[], dict[str, Any]], needs: float = 8) -> None:
        campaign.check(plan, name, run, needs)

    for name in ("linear", "tree"):
        if name in plan.servers:
            check(f"greedy: {name}", lambda s=plan.servers[name]: checks.greedy(reference, s, asked, 96))  # type: ignore[misc]
    check("yardstick: the reference against itself", lambda: checks.own_noise(reference, asked))
    long_ids = (asked[0] * 20)[: 4 * CHUNK + 37]
    check("chunked prefill", lambda: checks.greedy(reference, tree, [long_ids, long_ids[5:-3]], 64))
    for name in ("tree", "linear"):
        if name in plan.servers:
            run = lambda s=plan.servers[name]: checks.turns(reference, s, few[:4], asked[-1][:12])  # noqa: E731
            check(f"multi-turn over the prefix cache: {name}", run)
    wide = 8 if plan.on_cpu else BATCH
    lengths = [16] * (wide - 12 if wide > 12 else 3) + [40] * (11 if wide > 12 else 4) + [120]
    many = [asked[i % len(asked)] for i in range(wide)]
    check(f"batch {wide} to 1", lambda: checks.together(reference, tree, many, lengths))
    check("stop tokens and strings", lambda: checks.stops(reference, tree, few[:4]))
    both = {name: plan.servers[name] for name in ("tree", "linear") if name in plan.servers}
    room = CONTEXT - max(len(ids) for ids in few) - 8
    check("long texts", lambda: checks.long_texts(reference, both, few, room))
    for name, server in both.items():
        check(f"context limit: {name}", lambda s=server: checks.context_limit(reference, s, asked, CONTEXT))  # type: ignore[misc]
    check("penalties and biases", lambda: checks.penalties(reference, tree, asked))
    if plan.on_cpu:
        campaign.add(
            {"pair": plan.label, "check": "sampling", "ok": None, "not_run": "SGLang's DFLASH is greedy on CPU"}
        )
    else:
        check("greedy beside sampled", lambda: checks.beside_sampled(reference, tree, asked))
        check("sampling", lambda: checks.sampling(reference, tree, asked[0], 1536), needs=20)
    total, aborted = (40, 10) if plan.on_cpu else (200, 50)
    check(
        f"{total} requests, {aborted} aborted", lambda: checks.aborts(reference, tree, asked, total, aborted), needs=15
    )


def variant_checks(campaign: Campaign, plan: Plan, asked: IdLists) -> None:
    """What is asked of servers that differ from the main one in one switch, or have a broken draft."""
    servers, few = plan.servers, asked[:6]
    reference, tree = servers["reference"], servers["tree"]
    for name in VARIANTS:
        if name in servers:
            run = lambda s=servers[name]: checks.greedy(reference, s, asked, 96)  # noqa: E731
            campaign.check(plan, f"greedy: {name}", run)
    for name in ("eager", "no overlap"):
        if name in servers:
            run = lambda s=servers[name]: checks.equal_acceptance(tree, s, few)  # noqa: E731
            campaign.check(plan, f"equal acceptance: {name}", run)
    if "broken draft" in servers:
        broken = servers["broken draft"]
        campaign.check(plan, "draft of NaN", lambda: checks.broken_draft(reference, broken, asked))
    if all(name in servers for name in SEEDED):
        campaign.check(plan, "seeds", lambda: checks.seeds(servers[SEEDED[0]], servers[SEEDED[1]], few))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.campaign")
    parser.add_argument("models", type=Path, help="the folder that holds tiny-dense and tiny-hybrid")
    parser.add_argument("--pairs", default="tiny-dense,tiny-hybrid")
    parser.add_argument("--arms", help="comma-separated; the default is all that this device can run")
    parser.add_argument("--leave-out", default="", help="PAIR:CHECK,... (a check by the first letters of its name)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=240, help="when to stop beginning new checks")
    parser.add_argument("--stagger", type=float, default=0, help="seconds between the starts of two pairs")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the speed rows; 0 leaves them out")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--tp", type=int, default=1, help="GPUs per server, the reference's excepted")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out = Path(os.environ.get("OUT", "."))
    campaign = Campaign(options.seconds, options.json, tuple(filter(None, options.leave_out.split(","))))
    plans, threads = [], []
    # In a process of its own: its arithmetic must not hold up the requests.
    command = [sys.executable, "-m", "sglang_ddtree.bench.campaign_drift"]
    drift = (
        None if options.cpu else subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    )
    try:
        for i, label in enumerate(options.pairs.split(",")):
            folder = options.models / label
            plan = Plan(
                label,
                target_for(folder, options.cpu, out),
                str(folder / "draft"),
                options.width,
                options.cpu,
                options.tp,
            )
            plans.append(plan)
            sets = [options.models / "prompts" / f"{name}.jsonl" for name in PROMPT_SETS]
            asked = [ids[:400] for ids in prompts(plan.target, sets, 3)]
            arms = options.arms.split(",") if options.arms else arms_of(options.cpu, "hybrid" in label)
            arms = [arm for arm in arms if not f"{label}:start: {arm}".startswith(campaign.left_out or ("\0",))]
            args = (campaign, plan, arms, out, options.port + 1000 * i, asked)
            threads.append(threading.Thread(target=check_pair, args=args))
            threads[-1].start()
            if options.cpu:
                threads[-1].join()  # two pairs at once are too much for a small machine
            elif i == 0:
                time.sleep(options.stagger)
        for thread in threads:
            thread.join()
        if drift is not None:
            campaign.check(plans[-1], "drift of a recurrent state", lambda: drift_result(drift, campaign.left()))
        for plan in plans if options.rounds else []:
            speed_rows(campaign, plan, asked, options.rounds)
    finally:
        for plan in plans:
            plan.stop()
        if drift is not None and drift.poll() is None:
            drift.kill()
    return 1 if any(row.get("ok") is False for row in campaign.rows) else 0


def drift_result(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    text, _ = process.communicate(timeout=max(seconds, 1))
    if process.returncode:
        return {"ok": False, "error": text[-600:]}
    return dict(json.loads(text.strip().splitlines()[-1]))


def target_for(folder: Path, on_cpu: bool, out: Path) -> str:
    """The target's folder; SGLang 0.5.16 needs the hybrid in Qwen3-Next form."""
    config = json.loads((folder / "target" / "config.json").read_text())
    if on_cpu or config["model_type"] != "qwen3_5_text":
        return str(folder / "target")
    from models.convert import to_qwen3_next

    converted = Path(os.environ.get("TMPDIR", "/tmp")) / f"{folder.name}-converted-{os.getpid()}"
    to_qwen3_next(folder / "target", converted)
    return str(converted)


def speed_rows(campaign: Campaign, plan: Plan, asked: IdLists, rounds: int) -> None:
    """Tokens per second of the three main servers, with all others gone."""
    arms = {name: plan.servers[name] for name in ("linear", "tree") if name in plan.servers}
    if len(arms) < 2 or campaign.left() < 15:
        campaign.add({"pair": plan.label, "check": "speed", "ok": None, "not_run": "no time was left"})
        return
    rows = measure_speed(arms, asked, 192, rounds, sizes=(1, 8))
    for row in rows:
        campaign.add({"pair": plan.label, "ok": True, **row})


if __name__ == "__main__":
    sys.exit(main())
