"""Benchmarks of the graph engine: prints figures against the limits of the specification, and ratios against DBOS.

python -m tests.graph.bench [--dbos-python VENV/bin/python]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.graph.model import Action, Evidence, GraphSpec, TaskContext, TaskSpec
from orchestrator.graph.runner import Runner
from orchestrator.store.store import Store, open_store

TASKS, EVENTS, REPEATS = 2000, 50_000, 3

DBOS_PROGRAM = """
import sys, time
from dbos import DBOS
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{sys.argv[1]}/dbos.sqlite", "log_level": "ERROR"})

@DBOS.step()
def noop(before):
    return {"n": 1}

@DBOS.workflow()
def flow(count):
    before = None
    for _ in range(count):
        before = noop(before)

DBOS.launch()
flow(10)
start, processor = time.perf_counter(), time.process_time()
flow(int(sys.argv[2]))
print((time.process_time() - processor) / int(sys.argv[2]) * 1000, (time.perf_counter() - start) / int(sys.argv[2]) * 1000)
DBOS.destroy()
"""


class Noop(Action):
    """Does nothing, and says so."""

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        return {"n": 1}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("nothing", "nothing happened")


class Chatter(Noop):
    """Logs many lines and notes the memory on the way."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.memory_mb: list[float] = []

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        for number in range(self.lines):
            ctx.log(f"line {number} of a log that goes on and on")
            if number % (self.lines // 5) == 0:
                self.memory_mb.append(resident_mb())
        self.memory_mb.append(resident_mb())
        return {}


def chain(count: int) -> GraphSpec:
    """Tasks that each depend on the one before, as in the DBOS workflow."""
    return GraphSpec("chain", tuple(_task(number, Noop()) for number in range(count)))


def _task(number: int, action: Action) -> TaskSpec:
    return TaskSpec(f"t{number}", "Do nothing", "bench", action, (f"t{number - 1}",) if number else ())


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def run(store: Store, graph: GraphSpec, **options: Any) -> tuple[float, str]:
    """Seconds and the run's id. Prints the processor time too, which other load on the machine does not change much."""
    start, processor = time.perf_counter(), time.process_time()
    result = Runner(store, graph, lambda name: None, host="local").run(**options)
    assert result.exit_code == 0, result.reason
    seconds = time.perf_counter() - start
    print(
        f"  {graph.name}: {seconds:.2f} s, of which {time.process_time() - processor:.2f} s on the processor",
        flush=True,
    )
    return seconds, result.run_id


def report(name: str, value: float, unit: str, limit: float) -> bool:
    print(
        f"{name}: {value:.3f} {unit} (limit {limit:g} {unit}): {'within' if value <= limit else 'MISSED'}", flush=True
    )
    return value <= limit


def overhead(store: Store) -> tuple[bool, float]:
    best = min(run(store, chain(TASKS))[0] for _ in range(REPEATS)) / TASKS * 1000
    return report(f"engine overhead per task, chain of {TASKS}", best, "ms", 3.0), best


def against_dbos(ours_ms: float, python: str, folder: Path) -> bool:
    figures = []
    for number in range(REPEATS):
        place = folder / f"dbos{number}"
        place.mkdir()
        done = subprocess.run(
            [python, "-c", DBOS_PROGRAM, str(place), str(TASKS)], capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            print(f"DBOS comparison failed: {done.stderr.strip().splitlines()[-1:]}")
            return False
        processor_ms, wall_ms = map(float, done.stdout.split()[-2:])
        print(f"  DBOS: {wall_ms:.3f} ms per step, of which {processor_ms:.3f} ms on the processor", flush=True)
        figures.append(wall_ms)
    ratio = min(figures) / ours_ms
    print(f"DBOS workflow on SQLite, {TASKS} steps: {min(figures):.3f} ms per step; DBOS / ours = {ratio:.2f}x")
    return ratio > 1


def resume(store: Store) -> bool:
    _, run_id = run(store, chain(TASKS))
    last = store.tasks.get(run_id, f"t{TASKS - 1}")
    best = float("inf")
    for _ in range(REPEATS):
        with store.transaction() as tx:
            tx.execute("UPDATE tasks SET state = 'unknown' WHERE run_id = ? AND key = ?", (run_id, last.key))
            tx.execute("UPDATE runs SET state = 'interrupted' WHERE id = ?", (run_id,))
        best = min(best, run(store, chain(TASKS), run_id=run_id, resume=True)[0])
    return report(f"resume of {TASKS} tasks with one left", best, "s", 1.0)


def status(store: Store, url: str) -> bool:
    missing = EVENTS - store.events.count()
    run_id = store.runs.list()[0].id
    with store.transaction():
        for number in range(max(0, missing)):
            store.events.append(run_id, "t0", "log", {"line": f"line {number}"})
    name = f"orchestrate status, {TASKS} tasks and {store.events.count()} events"
    return report(name, best_process("status", run_id, "--state", url), "s", 0.4)


def help_text() -> bool:
    return report("orchestrate --help", best_process("--help"), "s", 0.25)


def best_process(*arguments: str) -> float:
    """Seconds of the quickest of some new processes; prints their processor time, which other load changes less."""
    walls, processors = [], []
    for _ in range(REPEATS + 2):
        before, start = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-m", "orchestrator", *arguments], check=True, capture_output=True)
        walls.append(time.perf_counter() - start)
        after = os.times()
        spent = (after.children_user - before.children_user) + (after.children_system - before.children_system)
        processors.append(spent)
    print(f"  {arguments[0]}: {min(processors):.2f} s on the processor", flush=True)
    return min(walls)


def memory(store: Store) -> bool:
    chatter = Chatter(EVENTS)
    heard = 0

    def count(event: Any) -> None:
        nonlocal heard
        heard += 1

    seconds, _ = run(store, GraphSpec("chatter", (_task(0, chatter),)), on_event=count)
    print(
        f"{EVENTS} log events: {seconds / EVENTS * 1e6:.0f} us each, memory {[round(mb) for mb in chatter.memory_mb]} MB"
    )
    return report(f"memory growth over {EVENTS} events", chatter.memory_mb[-1] - chatter.memory_mb[1], "MB", 5.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbos-python", help="an interpreter that has the package dbos")
    options = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/state.db"
        with open_store(url) as store:
            within, ours_ms = overhead(store)
            results = [within]
            if options.dbos_python:
                results.append(against_dbos(ours_ms, options.dbos_python, Path(name)))
            else:
                print("DBOS comparison left out: give --dbos-python")
            results += [resume(store), status(store, url), help_text(), memory(store)]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
