"""Kills real deployments with SIGKILL at random events, resumes them, and compares the end with an undisturbed run.

python -m tests.graph.real_kills [--points N] [--seed S]   ends with a line `N passed, N failed`.

One embedded host with the real SGLang on CPU serves all points; every point gets a store of its own and the host as it
was found, so that each of them does the whole work. Some points adopt DDTree (and roll back afterwards), so that
kills fall into the cut-over too.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.hosts.load import load_inventory, select_host
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.store.store import open_store
from orchestrator.transport.embedded import embedded_home, processes_of, remove_embedded
from tests.e2e.conftest import INVENTORY, QUICK, Result, Story, free_ports

HOST = "local"
QUIET = ("log", "progress", "metric", "fact")  # events that come in crowds; points are drawn from the others
MAX_DELAY_S = 4.0  # a kill falls up to so long after its event, into the middle of effects
SETTLE_S = 40.0
RUN_S = 3600.0


@dataclass(frozen=True)
class Way:
    """One way to end a deployment; `cutover` says whether the service is restarted with the release."""

    settings: tuple[str, ...]
    exit_code: int
    algorithm: str


KEEP = Way((*QUICK, "--set", "decide=keep-linear", "--reason", "kill points"), 9, "DFLASH")
ADOPT = Way((*QUICK, "--set", "decide=adopt", "--set", "nodes=15", "--reason", "kill points"), 0, "DDTREE")
WAYS = {"keep linear": KEEP, "adopt": ADOPT}


@dataclass(frozen=True)
class Point:
    """Kill `delay_s` after the event number `number` of those that are not quiet."""

    way: str
    number: int
    delay_s: float


@dataclass
class Watched:
    """What was seen of a run before it was killed: every (seq, kind) of the store, and the last event's words."""

    seen: list[tuple[int, str]] = field(default_factory=list)
    last: str = "nothing"
    reached: bool = False


class Yard:
    """The embedded host and the stores of the points."""

    def __init__(self, home: Path) -> None:
        port = free_ports(6)
        (home / "hosts.yaml").write_text(INVENTORY.format(port=port))
        self.story = Story(home, port)
        self.config = select_host(load_inventory(home / "hosts.yaml"), HOST)
        self.stores = 0

    def new_store(self) -> str:
        self.stores += 1
        return f"sqlite:///{self.story.home}/point{self.stores}.db"

    def deploy(self, way: Way, store: str, *more: str) -> list[str]:
        return ["run", "deploy-ddtree", "--yes", *way.settings, "--state", store, *more]

    @contextmanager
    def session(self) -> Iterator[HostSession]:
        with open_session(self.config, self.story.home) as session:
            yield session

    def as_found(self) -> None:
        """The linear service live and every release of ours gone, as before the first run."""
        with self.session() as session:
            live_tree = session.services.definition(session.unit)
        if live_tree is not None and live_tree.overridden:
            must(self.story.orchestrate("rollback", "--yes", "--state", self.last_store()))
        with self.session() as session:
            for name in session.releases.ids():
                if name.startswith("ddtree-"):
                    session.releases.forget_known_good(name)
                    session.releases.discard(name)

    def last_store(self) -> str:
        return f"sqlite:///{self.story.home}/point{self.stores}.db"

    def state(self, store: str) -> dict[str, Any]:
        """What must be the same with and without a kill."""
        with self.session() as session:
            definition = session.services.definition(session.unit)
            releases = {name: session.releases.read(name) for name in session.releases.ids()}
            host = {
                "algorithm": self.story.server_info()["speculative_algorithm"],
                "speculates": self.story.generate()["meta_info"]["spec_verify_ct"] > 0,
                "unit runs": session.services.status(session.unit).running,
                "release of the unit": definition.release if definition else None,
                "units": sorted(path.name for path in self._services().iterdir()),
                "releases": {name: (len(one.added), len(one.changed)) for name, one in releases.items()},
                "current": session.releases.current(),
                "known good": sorted(one.release for one in session.releases.known_good()),
                "switch armed": session.deadman.status().state in ("armed", "firing"),
            }
        with open_store(store, read_only=True) as opened:
            run = opened.runs.list()[0]
            tasks = {task.key: str(task.state) for task in opened.tasks.list(run.id)}
        return {**host, "processes": self.processes(), "run": (str(run.state), run.exit_code), "tasks": tasks}

    def processes(self) -> list[str]:
        """The processes of the host by the program they run, without numbers."""
        names = []
        for pid in processes_of(embedded_home(self.story.home, HOST)):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            names.append(name)
        return sorted(names)

    def service_pid(self) -> int:
        with self.session() as session:
            return session.services.status(session.unit).main_pid

    def _services(self) -> Path:
        return embedded_home(self.story.home, HOST) / ".orchestrate" / "services"

    def settled(self, store: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The state as soon as it is as wanted, else what it is after a while: processes take time to go."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = self.state(store)
            if found == wanted or time.monotonic() > deadline:
                return found
            time.sleep(0.5)


def must(result: Result) -> Result:
    if result.code not in (0, 9):
        raise RuntimeError(f"orchestrate ended with {result.code}: {result.stderr[-2000:]}")
    return result


def loud_events(store: str) -> int:
    with open_store(store, read_only=True) as opened:
        return sum(event.kind not in QUIET for event in opened.events.tail(limit=100_000))


def undisturbed(yard: Yard, name: str) -> tuple[int, dict[str, Any]]:
    """How many events such a run writes, and how it leaves host and store."""
    way, store = WAYS[name], yard.new_store()
    started = time.monotonic()
    done = yard.story.orchestrate(*yard.deploy(way, store), timeout_s=RUN_S)
    if done.code != way.exit_code:
        raise RuntimeError(f"an undisturbed run ({name}) ended with {done.code}: {done.stderr[-3000:]}")
    time.sleep(1.0)
    count, state = loud_events(store), yard.state(store)
    print(f"{name}: {count} events to be killed at, {time.monotonic() - started:.0f} s undisturbed", flush=True)
    return count, state


def kill_at(yard: Yard, point: Point, store: str) -> Watched:
    """Start the run and kill it, with everything that it started itself on this machine, at the point."""
    watched = Watched()
    process = yard.story.start(*yard.deploy(WAYS[point.way], store))
    path = Path(store.removeprefix("sqlite:///"))
    try:
        while process.poll() is None and not watched.reached:
            if path.exists():
                look(store, watched, point.number)
            time.sleep(0.01)
        if watched.reached:
            time.sleep(point.delay_s)
            watched.reached = process.poll() is None
            look(store, watched, point.number)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return watched


def look(store: str, watched: Watched, number: int) -> None:
    """Read what was committed since the last look."""
    try:
        with open_store(store, read_only=True) as opened:
            events = opened.events.tail(watched.seen[-1][0] if watched.seen else 0, limit=100_000)
    except Exception:
        return  # the store is just being made
    watched.seen += [(event.seq, event.kind) for event in events]
    if events:
        watched.last = f"{events[-1].kind} of {events[-1].task_key or 'the run'}"
    watched.reached = watched.reached or sum(kind not in QUIET for _, kind in watched.seen) >= number


def try_point(yard: Yard, point: Point, wanted: Mapping[str, Any]) -> list[str]:
    """Kill, resume, and say what is wrong."""
    way, store = WAYS[point.way], yard.new_store()
    before = yard.service_pid()
    watched = kill_at(yard, point, store)
    if not watched.reached:
        return ["the run ended before the point was reached"]
    resume = ("--resume", "last") if watched.seen else ()
    done = yard.story.orchestrate(*yard.deploy(way, store, *resume), timeout_s=RUN_S)
    print(f"  killed after {watched.last}; resume ended with {done.code}", flush=True)
    problems = [] if done.code == way.exit_code else [f"resume ended with {done.code}: {done.stderr[-1500:]}"]
    found = yard.settled(store, wanted)
    problems += [f"{name}: {found[name]} instead of {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    if way is KEEP and yard.service_pid() != before:
        problems.append("the linear service was restarted by a run that keeps it")
    return problems + broken_promises(store, watched)


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


def draw_points(count: int, events: Mapping[str, int], draw: random.Random) -> list[Point]:
    """Two of three keep the linear service, the third adopts; the last events are left out, for timing differs."""
    points = []
    for number in range(count):
        way = "adopt" if number % 3 == 2 else "keep linear"
        points.append(Point(way, draw.randint(1, events[way] - 3), draw.uniform(0.0, MAX_DELAY_S)))
    return points


def tree_sha(story: Story) -> str:
    """Every path, mode, link and byte of the service's environment."""
    command = 'tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$1" -cf - . | sha256sum'
    done = subprocess.run(["sh", "-c", command, "sh", story.environment()], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def run_points(yard: Yard, count: int, draw: random.Random) -> int:
    """Prints failures and the number of kill points; 0 when all passed."""
    must(yard.story.orchestrate("hosts", "start", HOST, timeout_s=RUN_S))
    environment = tree_sha(yard.story)
    events, wanted = {}, {}
    for name in ("keep linear", "adopt") if count > 2 else ("keep linear",):
        yard.as_found()
        events[name], wanted[name] = undisturbed(yard, name)
    passed = failed = 0
    for number, point in enumerate(draw_points(count, events, draw), 1):
        started = time.monotonic()
        yard.as_found()
        print(f"point {number}: {point.way}, event {point.number} and {point.delay_s:.1f} s", flush=True)
        try:
            problems = try_point(yard, point, wanted[point.way])
        except Exception:
            problems = [traceback.format_exc()]
        passed, failed = passed + (not problems), failed + bool(problems)
        for problem in problems:
            print(f"  FAILED: {problem}", flush=True)
        print(f"  {'ok' if not problems else 'failed'} after {time.monotonic() - started:.0f} s", flush=True)
    yard.as_found()
    if tree_sha(yard.story) != environment:
        print("FAILED: the environment of the linear service is no longer byte-identical", flush=True)
        failed += 1
    print(f"{passed + failed} kill points with real phases tried")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not os.environ.get("ORCHESTRATE_ENGINE_BASE"):
        from tools import engine_env

        engine_env.make()
        os.environ["ORCHESTRATE_ENGINE_BASE"] = str(engine_env.engine_python().parent.parent)
    with tempfile.TemporaryDirectory(prefix="real-kills-") as name:
        home = Path(name)
        try:
            return run_points(Yard(home), options.points, random.Random(options.seed))
        finally:
            remove_embedded(home, HOST)


if __name__ == "__main__":
    sys.exit(main())
