"""Command line: collect data, then train pairs; on one H200 the two shipped pairs take about five minutes."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch._dynamo

from . import dataset, evaluate, layers, loop
from .export import archive
from .pair import Settings, train_pair
from .spec import PAIRS

PART_BYTES = 15 << 20
# Seconds of (target, draft) training per pair at --time-scale 1, compiling not counted. A larger draft that trains longer
# accepts more by itself, and leaves a tree less to gain than these pairs are to show.
TIME_BOXES = {"tiny-dense": (60, 50), "tiny-hybrid": (60, 50), "base-dense": (60, 35), "base-hybrid": (60, 40)}
# Four to five times through the text: after eighteen times the base dense target knew it by heart.
BASE_TARGET_STEPS = 900


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m models.train", description=__doc__)
    parser.add_argument("command", choices=["prepare", "train", "evaluate"])
    parser.add_argument("--data", type=Path, default=Path("work/data"), help="folder of the prepared data")
    parser.add_argument("--work", type=Path, default=Path("work/pairs"), help="where checkpoints are written")
    parser.add_argument("--out", type=Path, help="also pack every finished pair into this folder")
    parser.add_argument("--pairs", default="tiny-dense,tiny-hybrid", help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--time-scale", type=float, default=1.0, help="multiplies every time box")
    parser.add_argument("--deadline", type=float, help="start no stage that cannot end within this many seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument(
        "--smoke", action="store_true", help="every line of code in a minute on a CPU; the models are bad"
    )
    return parser.parse_args()


def settings_for(name: str, args: argparse.Namespace) -> Settings:
    if args.smoke:
        return Settings(
            600, 600, steps=6, batch=4, draft_batch=4, anchors=8, rollouts=8, rollout_batch=8, seed=args.seed, scale=4
        )
    target, draft = (seconds * args.time_scale for seconds in TIME_BOXES[name])
    if name.startswith("tiny"):
        return Settings(target, draft, seed=args.seed)
    return Settings(
        target, draft, target_steps=BASE_TARGET_STEPS, seed=args.seed, rollouts=4096, rollout_batch=2048,
        target_lr=2e-3, draft_lr=1e-3,
    )  # fmt: skip


def main() -> None:
    args = parse()
    if args.command == "prepare":
        dataset.prepare(args.data, 3_000_000 if args.smoke else None)
        print((args.data / "data.json").read_text(encoding="utf-8"))
        return
    started = time.monotonic()
    device = torch.device(args.device)
    layers.Compiled.enabled = device.type == "cuda" and not args.no_compile
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 32  # every pair and stage brings its own shapes
    data = dataset.load(args.data)
    for name in args.pairs.split(","):
        if name not in PAIRS:
            raise SystemExit(f"--pairs: {name} is not one of {', '.join(PAIRS)}")
        if args.command == "evaluate":
            found = evaluate.evaluate(args.work / name, data, args.device, scale=8 if args.smoke else 1)
            print(evaluate.text(name, found), flush=True)
            continue
        need = sum(TIME_BOXES[name]) * args.time_scale + 60
        if args.deadline and time.monotonic() - started + need > args.deadline:
            loop.say(f"{name}: left out, {need:.0f} s would pass the deadline")
            continue
        provenance = train_pair(PAIRS[name], data, args.work / name, settings_for(name, args), device)
        loop.say(f"{name}: {json.dumps(provenance['draft_top1_on_held_out_text'])}")
        if args.out:
            loop.say(f"{name}: packed as {archive(args.work / name, args.out, PART_BYTES)}")


if __name__ == "__main__":
    main()
