"""Kills real deployments with SIGKILL at random events, resumes them, and compares the end with an undisturbed run.

python -m tests.graph.real_kills [--points N] [--per-run K] [--seed S] [--way keep|adopt] [--home DIR]

Ends with a line `N passed, N failed`. One embedded host with the real SGLang on CPU serves all deployments; each gets a
store of its own and the host as it was found, and is killed and resumed K times on its way, in K different tasks. Some
adopt DDTree (and roll back afterwards), so that kills fall into the cut-over too. A point is a random event of its task,
and a random time until that task's next event, so that most kills fall into the middle of effects.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.graph.model import State
from orchestrator.store.records import Event
from orchestrator.store.store import open_store
from orchestrator.transport.embedded import remove_embedded
from tests.graph.real_yard import HOST, RUN_S, WAYS, Yard, must

QUIET = ("log", "progress", "metric", "fact")  # events that come in crowds; points are drawn from the others
MORE_STARTS = 2  # a kill in the cut-over may let the dead-man switch bring the linear service back before it is redone


@dataclass(frozen=True)
class Point:
    """Kill `delay_s` after the event `kind` of the task `task`."""

    way: str
    task: str
    kind: str
    delay_s: float


@dataclass(frozen=True)
class Undisturbed:
    """A deployment that nobody killed: its events that are not quiet, the state it left, and how often the service started."""

    events: tuple[Event, ...]
    state: Mapping[str, Any]
    starts: int

    def point(self, way: str, task: str, draw: random.Random) -> Point:
        """A random point in a task."""
        own = [event for event in self.events if event.task_key == task]
        at = draw.randrange(len(own) - (task == self.tasks()[-1]))
        until = own[at + 1].at - own[at].at if at + 1 < len(own) else 0.0
        return Point(way, task, own[at].kind, draw.uniform(0.0, until))

    def tasks(self) -> list[str]:
        return list(dict.fromkeys(event.task_key for event in self.events if event.task_key))


@dataclass
class Watched:
    """What was seen of a run before it was killed: every (seq, kind) of the store, and the last event's words."""

    seen: list[tuple[int, str]] = field(default_factory=list)
    last: str = "nothing"
    reached: bool = False
    built: Mapping[str, str] = field(default_factory=dict)


def loud_events(store: str) -> tuple[Event, ...]:
    with open_store(store, read_only=True) as opened:
        return tuple(event for event in opened.events.tail(limit=100_000) if event.kind not in QUIET)


def undisturbed(yard: Yard, name: str) -> Undisturbed:
    """Runs once without a kill."""
    way, store = WAYS[name], yard.new_store()
    began, before = time.monotonic(), yard.starts()
    done = yard.story.orchestrate(*yard.deploy(way, store), timeout_s=RUN_S)
    if done.code != way.exit_code:
        raise RuntimeError(f"an undisturbed run ({name}) ended with {done.code}: {done.stderr[-3000:]}")
    time.sleep(1.0)
    seen = Undisturbed(loud_events(store), yard.state(store), yard.starts() - before)
    took = time.monotonic() - began
    print(f"{name}: {len(seen.events)} events to be killed at, {took:.0f} s undisturbed", flush=True)
    yard.remembered(name).write_bytes(pickle.dumps(seen))
    return seen


def kill_at(yard: Yard, point: Point, store: str, watched: Watched) -> None:
    """Start the run, or resume it once something was stored, and kill it at the point."""
    path = Path(store.removeprefix("sqlite:///"))
    resume = ("--resume", "last") if watched.seen else ()
    command = yard.story.command(*yard.deploy(WAYS[point.way], store, *resume))
    watched.reached = False
    with open(path.with_suffix(".log"), "a") as log:  # a pipe that nobody reads would stop the run when it is full
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while process.poll() is None and not watched.reached:
                if path.exists():
                    look(store, watched, point)
                time.sleep(0.03)
            if watched.reached:
                time.sleep(point.delay_s)
                watched.reached = process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    killed_in_time = watched.reached
    look(store, watched, point)
    watched.reached = killed_in_time
    watched.built = {**yard.built(), **watched.built}


def look(store: str, watched: Watched, point: Point) -> None:
    """Read what was committed since the last look."""
    try:
        with open_store(store, read_only=True) as opened:
            events = opened.events.tail(watched.seen[-1][0] if watched.seen else 0, limit=100_000)
    except Exception:
        return  # the store is just being made
    watched.seen += [(event.seq, event.kind) for event in events]
    if events:
        watched.last = f"{events[-1].kind} of {events[-1].task_key or 'the run'}"
    watched.reached |= any((event.task_key, event.kind) == (point.task, point.kind) for event in events)


def try_points(yard: Yard, points: Sequence[Point], wanted: Undisturbed) -> tuple[int, list[str]]:
    """One deployment, killed at every point and resumed; how many kills that were, and what is wrong at its end."""
    way, store, watched = WAYS[points[0].way], yard.new_store(), Watched()
    before, kills = yard.starts(), 0
    for point in points:
        if watched.seen and passed_by(store, point):
            continue
        kill_at(yard, point, store, watched)
        kills += 1
        if not watched.reached:
            return kills, [f"the run ended before {point}"]
        print(f"  {point.delay_s:.1f} s after {point.kind} of {point.task}: killed after {watched.last}", flush=True)
    done = yard.story.orchestrate(*yard.deploy(way, store, "--resume", "last"), timeout_s=RUN_S)
    starts = yard.starts() - before
    print(f"  the last resume ended with {done.code}, {starts} starts of the service", flush=True)
    problems = [] if done.code == way.exit_code else [f"resume ended with {done.code}: {done.stderr[-1500:]}"]
    found = yard.settled(store, wanted.state)
    problems += [f"{name}: {found[name]} instead of {now}" for name, now in wanted.state.items() if found[name] != now]
    allowed = wanted.starts + (MORE_STARTS if any(point.task == "cutover" for point in points) else 0)
    if not wanted.starts <= starts <= allowed:
        problems.append(f"the live service was started {starts} times, undisturbed {wanted.starts}")
    after = yard.built()
    problems += [f"release {name} was built again" for name, at in watched.built.items() if after.get(name) != at]
    return kills, problems + broken_promises(store, watched)


def passed_by(store: str, point: Point) -> bool:
    """Whether the task of the point was done in the moment between the point before and its kill."""
    with open_store(store, read_only=True) as opened:
        return opened.tasks.get(opened.runs.list()[0].id, point.task).state is State.COMPLETED


def broken_promises(store: str, watched: Watched) -> list[str]:
    """No event lost, no gap, no proof missing, no confirmed change made again."""
    with open_store(store, read_only=True) as opened:
        events = opened.events.tail(limit=100_000)
        run = opened.runs.list()[0]
        tasks = opened.tasks.list(run.id)
    stored = {(event.seq, event.kind) for event in events}
    problems = [f"event {lost} was seen and then lost" for lost in watched.seen if lost not in stored]
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        problems.append("the event numbers have a gap")
    changing = {task.key for task in tasks if task.changes_host}
    applied = Counter(event.task_key for event in events if event.kind == "task.applied" and event.task_key in changing)
    problems += [f"task {key} was carried out {count} times" for key, count in applied.items() if count > 1]
    unproven = [task.key for task in tasks if task.state == "completed" and task.evidence_id is None]
    return problems + [f"task {key} is completed without evidence" for key in unproven]


def draw_points(count: int, per_run: int, runs: Mapping[str, Undisturbed], draw: random.Random) -> list[list[Point]]:
    """The points of each deployment, in the order of its tasks; no task twice in a way before each had its turn."""
    found: list[list[Point]] = []
    left: dict[str, list[str]] = {way: [] for way in runs}
    while count:
        way = list(runs)[len(found) % len(runs)]
        tasks = runs[way].tasks()
        if not left[way]:
            left[way] = draw.sample(tasks, len(tasks))
        chosen = [left[way].pop() for _ in range(min(count, per_run, len(left[way])))]
        found.append([runs[way].point(way, task, draw) for task in sorted(chosen, key=tasks.index)])
        count -= len(chosen)
    return found


def run_points(
    yard: Yard, deployments: Callable[[Mapping[str, Undisturbed]], list[list[Point]]], ways: Sequence[str]
) -> int:
    """Prints failures and the number of kill points; 0 when all passed."""
    must(yard.story.orchestrate("hosts", "start", HOST, timeout_s=RUN_S))
    runs = {}
    for name in ways:
        known = yard.remembered(name)
        if known.exists():
            runs[name] = pickle.loads(known.read_bytes())
            continue
        yard.as_found()
        runs[name] = undisturbed(yard, name)
    passed = failed = 0
    for number, points in enumerate(deployments(runs), 1):
        started = time.monotonic()
        yard.as_found()
        print(f"deployment {number} ({points[0].way}), {len(points)} kill points", flush=True)
        try:
            kills, problems = try_points(yard, points, runs[points[0].way])
        except Exception:
            kills, problems = len(points), [traceback.format_exc()]
        passed, failed = passed + (0 if problems else kills), failed + (kills if problems else 0)
        for problem in problems:
            print(f"  FAILED: {problem}", flush=True)
        print(f"  {'ok' if not problems else 'failed'} after {time.monotonic() - started:.0f} s", flush=True)
    yard.as_found()
    print(f"{passed + failed} kill points with real phases tried")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--per-run", type=int, default=4, help="how often a deployment is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, action="append", help="how the deployments end; default: all in turn")
    parser.add_argument("--home", type=Path, help="keep the host there for the next call, which then starts at once")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit must not leave the host behind
    print(f"seed {options.seed}", flush=True)
    if not os.environ.get("ORCHESTRATE_ENGINE_BASE"):
        from tools import engine_env

        engine_env.make()
        os.environ["ORCHESTRATE_ENGINE_BASE"] = str(engine_env.engine_python().parent.parent)
    draw = random.Random(options.seed)
    with prepared(options.home) as yard:
        return run_points(
            yard,
            lambda runs: draw_points(options.points, options.per_run, runs, draw),
            options.way or list(WAYS),
        )


@contextmanager
def prepared(home: Path | None) -> Iterator[Yard]:
    """The yard in `home`, which stays for the next call, else in a folder that is removed."""
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
        yield Yard(home)
        return
    with tempfile.TemporaryDirectory(prefix="real-kills-") as name:
        try:
            yield Yard(Path(name))
        finally:
            remove_embedded(Path(name), HOST)


if __name__ == "__main__":
    sys.exit(main())
