"""Kills a run with SIGKILL at every event boundary and host effect, resumes it, and compares the end with an undisturbed run.

python -m tests.graph.crash_matrix [--points N]   ends with a line `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.graph.model import GraphSpec
from orchestrator.graph.runner import Runner
from orchestrator.store.events import EventLog
from orchestrator.store.records import Event
from orchestrator.store.store import open_store
from tests.graph.fake_host import FakeHost
from tests.graph.stand_in import SCENARIOS

RUN = "r1"
Cell = tuple[str, int, Path, dict[str, Any]]  # scenario, kill point, empty store, wanted end state


class Bomb:
    """Counts the boundaries that this process passes and kills it at number `target`."""

    def __init__(self, target: int | None) -> None:
        self.target = target
        self.count = 0
        self._lock = threading.Lock()

    def at(self, name: str) -> None:
        with self._lock:
            if self.count == self.target:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1


def execute(graph: GraphSpec, folder: Path, bomb: Bomb, resume: bool) -> int:
    """The run in this process; boundaries are before and after the commit of each event and each host effect."""
    append = EventLog.append

    def before_commit(self: EventLog, *args: Any, **kwargs: Any) -> Event:
        event = append(self, *args, **kwargs)
        bomb.at("event written, not committed")
        return event

    def after_commit(event: Event) -> None:
        with open(folder / "seen", "a") as seen:
            seen.write(f"{event.seq} {event.kind}\n")
        bomb.at(f"committed {event.kind}")

    EventLog.append = before_commit  # type: ignore[method-assign]
    host = FakeHost(folder, bomb.at)
    with open_store(f"sqlite:///{folder}/state.db") as store:
        runner = Runner(store, graph, lambda name: host, host="fake")
        return runner.run(RUN, resume=resume, on_event=after_commit).exit_code


def in_child(work: Callable[[], int]) -> int:
    """Runs `work` in a forked process; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
            code = 70
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def count_points(graph: GraphSpec, template: Path, expected: int) -> tuple[int, dict[str, Any]]:
    """How many boundaries an undisturbed run passes, and how it leaves host and store."""
    with tempfile.TemporaryDirectory() as name:
        folder = fresh(template, Path(name))

        def work() -> int:
            bomb = Bomb(None)
            code = execute(graph, folder, bomb, resume=False)
            (folder / "points").write_text(str(bomb.count))
            return code

        code = in_child(work)
        assert code == expected, f"an undisturbed run ended with {code}"
        return int((folder / "points").read_text()), end_state(folder)


def try_point(graph: GraphSpec, template: Path, point: int, expected: int, wanted: dict[str, Any]) -> list[str]:
    """Kills at `point`, resumes, and returns what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = fresh(template, Path(name))
        killed = in_child(lambda: execute(graph, folder, Bomb(point), resume=False))
        if killed != -signal.SIGKILL:
            return [f"the process was not killed but ended with {killed}"]
        code = go_on(graph, folder)
        found = end_state(folder)
        problems = [] if code == expected else [f"resume ended with {code}, not {expected}"]
        problems += [
            f"{name}: {found[name]} instead of {wanted[name]}" for name in wanted if found[name] != wanted[name]
        ]
        return problems + broken_promises(folder)


def end_state(folder: Path) -> dict[str, Any]:
    """What must be the same with and without a kill."""
    with open_store(f"sqlite:///{folder}/state.db") as store:
        run = store.runs.get(RUN)
        tasks = {task.key: (str(task.state), task.output) for task in store.tasks.list(RUN)}
        artifacts = {(item.task_key, item.name, item.sha256) for item in store.artifacts.list(RUN)}
    return {
        "parts": sorted(FakeHost(folder).parts()),
        "run": (str(run.state), run.exit_code),
        "tasks": tasks,
        "artifacts": artifacts,
    }


def broken_promises(folder: Path) -> list[str]:
    """No effect twice, no lost event, no proof missing, nothing changed that was not announced before."""
    host = FakeHost(folder)
    problems = [f"effect {line!r} happened {n} times" for line, n in Counter(host.lines()).items() if n > 1]
    with open_store(f"sqlite:///{folder}/state.db") as store:
        events = store.events.tail(limit=100_000)
        stored = {f"{event.seq} {event.kind}" for event in events}
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            problems.append("the event numbers have a gap")
        seen = (folder / "seen").read_text().splitlines() if (folder / "seen").exists() else []
        problems += [f"event {line!r} was seen and then lost" for line in seen if line not in stored]
        announced = {event.task_key for event in events if event.kind == "task.applying"}
        for task in store.tasks.list(RUN):
            if task.changes_host and task.began and task.key not in announced:
                problems.append(f"task {task.key} began without an intent event")
            if task.state == "completed" and task.evidence_id is None:
                problems.append(f"task {task.key} is completed without evidence")
    return problems


def go_on(graph: GraphSpec, folder: Path) -> int:
    """What a person does next: nothing for a run that had ended, else resume it, or start it if nothing was stored."""
    with open_store(f"sqlite:///{folder}/state.db") as store:
        runs = store.runs.list()
    if runs and runs[0].exit_code is not None:
        return runs[0].exit_code
    return in_child(lambda: execute(graph, folder, Bomb(None), resume=bool(runs)))


def fresh(template: Path, folder: Path) -> Path:
    shutil.copy(template, folder / "state.db")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, help="try only this many points, drawn from all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    return run_matrix(options.points, random.Random(options.seed), options.processes)


def try_cell(cell: Cell) -> tuple[Cell, list[str]]:
    """One point, in a worker process."""
    scenario, point, template, wanted = cell
    graph, expected = SCENARIOS[scenario]
    return cell, try_point(graph, template, point, expected, wanted)


def run_matrix(sample: int | None, draw: random.Random, processes: int) -> int:
    """Prints failures and the number of kill points; returns 0 when all passed."""
    passed = failed = 0
    with tempfile.TemporaryDirectory() as name:
        template = Path(name) / "template.db"
        open_store(f"sqlite:///{template}").close()
        (Path(name) / "template.db-wal").unlink(missing_ok=True)
        cells: list[Cell] = []
        for scenario, (graph, expected) in SCENARIOS.items():
            points, wanted = count_points(graph, template, expected)
            print(f"{scenario}: {points} kill points", flush=True)
            cells += [(scenario, point, template, wanted) for point in range(points)]
        if sample is not None:
            cells = draw.sample(cells, min(sample, len(cells)))
        started = time.monotonic()
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            for (scenario, point, *_), problems in pool.imap_unordered(try_cell, cells):
                passed, failed = passed + (not problems), failed + bool(problems)
                for problem in problems:
                    print(f"{scenario}, point {point}: {problem}", flush=True)
                if (passed + failed) % 100 == 0:
                    print(f"{passed + failed} of {len(cells)} after {time.monotonic() - started:.0f} s", flush=True)
    print(f"{len(cells)} kill points tried")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
