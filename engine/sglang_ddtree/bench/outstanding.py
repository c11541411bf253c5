"""What to measure again on a GPU once the code has changed, as commands with their minutes: the list of a short lease.

    python -m sglang_ddtree.bench.outstanding --list
    python -m sglang_ddtree.bench.outstanding --minutes 9 [--only NAME,NAME]

Items run one after the other and finish in the order listed.  Each writes its own result file NAME.json under $OUT (here, where
that is not set) as it goes, so a lease that ends early loses only what was running; an item that does not fit into the minutes left is
named and not begun.  Minutes are those of earlier results on one H200, starts of servers included.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .campaign_plan import ENGINE
from .report import write_result
from .server import leave_on_sigterm

SLACK = 1.5  # an item may take this many times its minutes before it is ended
GRACE = 20.0  # seconds it then has to end its servers
PAIRS = ("tiny-dense", "tiny-hybrid")


@dataclass(frozen=True)
class Item:
    """``command``: arguments of python, with {result}, {models} and {scratch} filled in."""

    name: str
    minutes: float
    command: tuple[str, ...]
    settles: str


def _module(text: str) -> tuple[str, ...]:
    return ("-m", *text.split())


ITEMS = (
    Item(
        "selftest", 2.0, _module("sglang_ddtree selftest --json {scratch}/ops.json --kernels {result} --workers 12"),
        "every op and every tile a launcher may pick, on the present code",
    ),
    Item(
        "widths-dense", 2.5,
        _module("sglang_ddtree.bench.widths {models} --pair tiny-dense --labels auto,63 --rounds 8 --tokens 256 --seconds 130 --json {result}"),
        "auto's speed on the dense pair up to batch 32",
    ),
    Item(
        "widths-hybrid", 3.0,
        _module("sglang_ddtree.bench.widths {models} --pair tiny-hybrid --labels auto,63 --rounds 8 --tokens 256 --seconds 130 --json {result}"),
        "auto's speed on the hybrid up to batch 32",
    ),
    Item(
        "oracle", 2.5,
        (*_module("baselines.gpu_check --at-once 16 --deadline 130 --logs {scratch} --json {result} --pairs"), ",".join(PAIRS)),
        "both pairs against the offline baselines, every budget",
    ),
    Item(
        "step", 5.0,
        _module("sglang_ddtree.bench.step {scratch} --arms linear,ddtree:31+63+64 --profile 1,8 --seconds 165 --json {result}"),
        "steps of 32, 64 and 65 rows beside linear's, their stages, and 4k",
    ),
)  # fmt: skip


def chosen(only: str) -> list[Item]:
    """The items named, in the order of the list; ValueError names one that is not there."""
    names = [name for name in only.split(",") if name]
    unknown = sorted(set(names) - {item.name for item in ITEMS})
    if unknown:
        raise ValueError(f"No item is called {', '.join(unknown)}: known are {', '.join(item.name for item in ITEMS)}.")
    return [item for item in ITEMS if not names or item.name in names]


def listing(items: Sequence[Item]) -> list[str]:
    """A line per item: its minutes, those up to its end, and what it settles."""
    lines, total = [], 0.0
    for item in items:
        total += item.minutes
        lines.append(f"{item.name:<14} {item.minutes:4.1f} min  {total:5.1f} in all  {item.settles}")
    return lines


def run_item(item: Item, models: Path, out: Path, limit: float) -> int:
    """The exit code of an item; it and what it started are ended after ``limit`` seconds, and its servers' logs go with it."""
    home = str(models.resolve().parent)  # the packages beside the models, wherever this one was installed from
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix=f"{item.name}-") as scratch:
        environment["OUT"] = scratch
        places = {"result": str(out / f"{item.name}.json"), "models": str(models), "scratch": scratch}
        command = [sys.executable, *(part.format(**places) for part in item.command)]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the item to end its servers, which lead process groups of their own; then end it."""
    for sign, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        if process.poll() is None:
            os.killpg(process.pid, sign)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue


def main(argv: list[str] | None = None) -> int:
    """0: all chosen items ran and passed; 1: one did not; 2: bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.outstanding")
    parser.add_argument("--list", action="store_true", help="print the items and run nothing")
    parser.add_argument("--only", default="", help="comma-separated names; the default is all")
    parser.add_argument("--minutes", type=float, default=28.0, help="begin nothing that would end later")
    parser.add_argument("--models", type=Path, default=ENGINE / "models")
    options = parser.parse_args(argv)
    try:
        items = chosen(options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print(*listing(items), sep="\n")
        return 0
    leave_on_sigterm()
    out = Path(os.environ.get("OUT", "."))
    rows = run_all(items, options.models, out, options.minutes * 60)
    left = [str(row["item"]) for row in rows if "not_run" in row]
    if left:
        print(f"Not run: --only {','.join(left)}")
    return 0 if all(row.get("exit") == 0 for row in rows) else 1


def run_all(items: Sequence[Item], models: Path, out: Path, seconds: float) -> list[dict[str, object]]:
    """A row per item, kept in outstanding.json after each."""
    end, rows = time.monotonic() + seconds, list[dict[str, object]]()
    for item in items:
        begun = time.monotonic()
        row: dict[str, object] = {"item": item.name, "minutes_expected": item.minutes}
        if end - begun < item.minutes * 60:
            row["not_run"] = f"{(end - begun) / 60:.1f} minutes were left"
        else:
            row["exit"] = run_item(item, models, out, min(item.minutes * 60 * SLACK, end - begun))
            row["minutes"] = round((time.monotonic() - begun) / 60, 2)
        rows.append(row)
        print(row, flush=True)
        write_result(out / "outstanding.json", "outstanding", rows)
    return rows


if __name__ == "__main__":
    sys.exit(main())
