"""Every fault at every point of a deploy, on real hosts: `python -m tests.hosts_lab.fault_matrix [--cells N] [--jobs N]`.

After each fault: within the dead man's limit the host serves the old or the new release, complete; a resumed run ends
right; nothing is applied twice; no partial release is current. Prints the matrix and ends with `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.hosts_lab import faults, lab, scene

POINTS = (
    "before-clone",
    "after-clone",
    "upload",
    "armed",
    "defined",
    "switched",
    "verifying",
    "disarming",
    "rolling-back",
    "bridged",
    "lifted",
)
STAND_IN = ("bridged", "lifted")  # points of a deploy in which an engine answers for the service while it restarts
DEADLINE_S = 25.0
GRACE_S = 60.0  # for a loaded machine: boot, restart and first answer
PAYLOAD = random.Random(12).randbytes(12 << 20)  # incompressible, so that an upload can be hit


@dataclass(frozen=True)
class Cell:
    fault: type[faults.Fault]
    point: str

    @property
    def label(self) -> str:
        return f"{self.fault.name} at {self.point}"


@dataclass
class Result:
    cell: Cell
    first_exit: int | None
    problems: list[str]
    seconds: float
    note: str


class Failed(Exception):
    """A promise that was not kept, in words."""


class CellRun:
    """One cell on a host of its own."""

    def __init__(self, cell: Cell, number: int, wheel: Path, digest: str, folder: Path) -> None:
        self.cell, self.wheel, self.digest, self.folder = cell, wheel, digest, folder
        self.name = f"m{number}"
        self.log: list[str] = []

    def run(self) -> Result:
        started = time.monotonic()
        problems: list[str] = []
        exit_code: int | None = None
        note = ""
        self.folder.mkdir(parents=True)
        try:
            with self.host() as host:
                fault = self.cell.fault(host)
                fault.prepare()
                exit_code = self.disturbed(host, fault)
                note = self.settled(host)
                fault.mend()
                self.resumed(host)
        except (Failed, lab.LabError, subprocess.SubprocessError, OSError) as error:
            problems.append(f"{error}")
            (self.folder / "log").write_text("\n".join(self.log))
        return Result(self.cell, exit_code, problems, time.monotonic() - started, note)

    @contextlib.contextmanager
    def host(self) -> Iterator[lab.LabHost]:
        machine = scene.host(self.name, self.cell.fault.files())
        (self.folder / "known_hosts").write_text(machine.pinned_line())
        try:
            yield machine
        finally:
            machine.down()

    def disturbed(self, host: lab.LabHost, fault: faults.Fault) -> int | None:
        """The first operator, hit by the fault at its point. Returns its exit code; None if it was killed."""
        hold = "" if self.cell.point == "upload" else self.cell.point
        if self.cell.point == "upload":
            faults.slow_uploads(host)
        process = self.operator(host, hold)
        try:
            self.wait_for_point(process)
            if self.cell.point == "upload":
                until(lambda: faults.upload_started(host), 60, "no upload was seen on the host")
            if fault.kills_operator:
                process.kill()
            fault.inject()
            with contextlib.suppress(BrokenPipeError):
                process.communicate("go\n", timeout=180)
        finally:
            process.kill()
            process.wait()
        return None if fault.kills_operator else process.returncode

    def operator(self, host: lab.LabHost, hold: str) -> subprocess.Popen[str]:
        config = host.config().model_dump(mode="json", exclude={"service_driver"})
        wish = {
            "host": config,
            "state_dir": str(self.folder),
            "wheel": str(self.wheel),
            "deadline_s": DEADLINE_S,
            "hold": hold,
            "then_back": self.cell.point == "rolling-back",
            "stand_in": self.cell.point in STAND_IN,
        }
        path = self.folder / "wish.json"
        path.write_text(json.dumps(wish))
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.hosts_lab.operator", str(path)],
            cwd=lab.REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for_point(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        guard = threading.Timer(240, process.kill)
        guard.start()
        try:
            for line in process.stdout:
                self.log.append(line.rstrip())
                if line.strip() == f"POINT {self.cell.point}":
                    return
        finally:
            guard.cancel()
        raise Failed(f"the operator never came to {self.cell.point}: {' | '.join(self.log[-3:])}")

    def settled(self, host: lab.LabHost) -> str:
        """Within the limit something complete serves; says what."""
        limit = DEADLINE_S + GRACE_S
        armed = "test -e /opt/ddtree/deadman/armed.json && echo yes || true"
        until(lambda: not host.inside(armed, check=False).strip(), limit, "the switch stayed armed beyond its limit")
        until(lambda: scene.whoami(host) is not None, limit, "nothing serves within the limit")
        if host.inside("nft list ruleset").strip():
            raise Failed("the redirection to the stand-in was left on")
        return self.complete(host)

    def complete(self, host: lab.LabHost) -> str:
        said = scene.whoami(host)
        if said is None:
            raise Failed("nothing serves")
        current = host.inside("readlink -f /opt/ddtree/current 2>/dev/null || true").strip()
        if current and host.inside(f"test -e {current}/manifest.json && echo yes || true").strip() != "yes":
            raise Failed(f"the current release {current} is partial")
        if said["prefix"] == "/opt/sglang/venv":
            if "LINEAR" not in said["argv"]:  # type: ignore[operator]
                raise Failed(f"the old environment serves with {said['argv']}")
            return "old"
        if not str(said["prefix"]).startswith("/opt/ddtree/releases/ddtree-") or said["payload"] != self.digest:
            raise Failed(f"an incomplete release serves: {said}")
        if "TREE" not in said["argv"]:  # type: ignore[operator]
            raise Failed(f"the release serves with {said['argv']}")
        return "new"

    def resumed(self, host: lab.LabHost) -> None:
        """A second operator, undisturbed, ends right, and nothing was applied twice."""
        process = self.operator(host, "")
        output, _ = process.communicate(timeout=300)
        self.log += ["--- resumed", *output.splitlines()]
        if process.returncode != 0:
            raise Failed(f"the resumed run ended with {process.returncode}: {output.strip().splitlines()[-1:]}")
        wanted = "old" if self.cell.point == "rolling-back" else "new"
        if self.complete(host) != wanted:
            raise Failed(f"after the resumed run the {self.complete(host)} release serves, not the {wanted} one")
        releases = host.inside("ls /opt/ddtree/releases").split()
        complete = host.inside("ls -d /opt/ddtree/releases/*/manifest.json").split()
        if len(releases) != 2 or len(complete) != 2:
            raise Failed(f"releases after the resumed run: {releases}, with a manifest {len(complete)}")
        drop_in = host.inside("cat /etc/systemd/system/sglang.service.d/*.conf 2>/dev/null || true")
        if drop_in.count("ExecStart=/") != (1 if wanted == "new" else 0):
            raise Failed(f"drop-in after the resumed run: {drop_in!r}")
        state = json.loads(host.inside("cat /opt/ddtree/deadman/outcome.json"))["state"]
        if state != "disarmed":
            raise Failed(f"the switch is {state} after the resumed run")
        if host.inside("ls /etc/systemd/system | grep -c ^orchestrate- || true").strip() != "0":
            raise Failed("units of the switch were left")
        if host.inside("ls /etc/systemd/system | grep standin || true").strip():
            raise Failed("the unit of the stand-in was left")
        if host.inside("pgrep -f '[d]eadman[.]py' || true").strip():
            raise Failed("a process of the switch was left")


def until(condition: Callable[[], bool], patience_s: float, otherwise: str) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise Failed(otherwise)
        time.sleep(0.3)


def cells(count: int | None) -> list[Cell]:
    """All cells, or `count` of them spread over every fault and point."""
    every = [Cell(fault, point) for fault, point in itertools.product(faults.FAULTS, POINTS)]
    if count is None or count >= len(every):
        return every
    diagonals = sorted(range(len(POINTS)), key=lambda shift: shift * 5 % len(POINTS))  # 0, 2, 4, ... : far apart
    diagonals.insert(1, diagonals.pop(diagonals.index(len(faults.FAULTS))))  # with the first, every point is met
    spread = [
        Cell(fault, POINTS[(index + shift) % len(POINTS)])
        for shift in diagonals
        for index, fault in enumerate(faults.FAULTS)
    ]
    return spread[:count]


def show(results: list[Result]) -> None:
    by_cell = {result.cell: result for result in results}
    width = max(len(fault.name) for fault in faults.FAULTS)
    print(" " * width + "  " + "  ".join(f"{point:>12}" for point in POINTS))
    for fault in faults.FAULTS:
        row = []
        for point in POINTS:
            result = by_cell.get(Cell(fault, point))
            row.append("-" if result is None else "FAIL" if result.problems else f"{result.note} {result.first_exit}")
        print(f"{fault.name:<{width}}  " + "  ".join(f"{text:>12}" for text in row))
    print("(what served within the limit after the fault, and the disturbed operator's exit code; None = killed)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, help="only so many cells, spread over the matrix")
    parser.add_argument("--only", help="only cells whose label this regular expression is found in")
    parser.add_argument("--jobs", type=int, default=3, help="hosts at once (most of a cell's time is waiting)")
    wish = parser.parse_args()
    if not os.environ.get(lab.INSIDE):
        lab.prepare()
        try:
            command = lab.inside_network([sys.executable, "-m", "tests.hosts_lab.fault_matrix", *sys.argv[1:]])
            return subprocess.run(command, cwd=lab.REPOSITORY, check=False).returncode
        finally:
            lab.remove_all()
    wheel = scene.plugin_wheel(PAYLOAD)
    digest = scene.payload_digest(PAYLOAD)
    chosen = [cell for cell in cells(wish.cells) if not wish.only or re.search(wish.only, cell.label)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fault-matrix-") as scratch:

        def one(numbered: tuple[int, Cell]) -> Result:
            number, cell = numbered
            result = CellRun(cell, number, wheel, digest, Path(scratch) / str(number)).run()
            verdict = "ok" if not result.problems else f"FAILED {result.problems[0]}"
            print(f"[{result.seconds:5.0f} s] {cell.label}: {verdict} ({result.note}, {result.first_exit})", flush=True)
            return result

        with ThreadPoolExecutor(max_workers=wish.jobs) as pool:
            results = list(pool.map(one, enumerate(chosen)))
        show(results)
        failed = [result for result in results if result.problems]
        for result in failed:
            print(f"--- {result.cell.label}: {result.problems[0]}")
            number = chosen.index(result.cell)
            print((Path(scratch) / str(number) / "log").read_text()[-1500:])
    print(f"{len(results)} cells in {time.monotonic() - started:.0f} s")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
