"""The only thread that reads the store for the screen: it follows a run and answers what the views ask."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.graph.model import TodoItem
from orchestrator.store.records import EvidenceRecord, RunRecord
from orchestrator.store.store import Store, open_store
from orchestrator.tui import reasons
from orchestrator.tui.benchreading import BenchReading, bench_reading
from orchestrator.tui.blocks import Block
from orchestrator.tui.eta import Durations, earlier_durations
from orchestrator.tui.logtext import LogLine, log_lines
from orchestrator.tui.model import Delta, Reading, advance, first_reading, pick_run, vanished
from orchestrator.tui.pages.history import compare_page

POLL_ACTIVE_S, POLL_IDLE_S, RETRY_S = 0.25, 1.0, 1.0
LOG_EVENTS = 2_000
BENCH_EVERY_S = 1.0


@dataclass(frozen=True)
class Update:
    """The run moved, or another run is shown now (`fresh`)."""

    reading: Reading
    delta: Delta
    durations: Durations
    bench: BenchReading = field(default_factory=BenchReading)
    fresh: bool = False


@dataclass(frozen=True)
class Log:
    """The newest log lines of a task (None: of the whole run); `missing` events lie further back."""

    run_id: str
    task_key: str | None
    lines: tuple[LogLine, ...]
    missing: int


@dataclass(frozen=True)
class TaskDetail:
    run_id: str
    task_key: str
    evidence: EvidenceRecord | None
    explained: tuple[str, ...]


@dataclass(frozen=True)
class Lists:
    """Runs of the store and its to-dos."""

    runs: tuple[RunRecord, ...]
    todos: tuple[TodoItem, ...]


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side, as a page."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Roadmap:
    """The roadmap as Markdown, or why there is none."""

    markdown: str
    problem: str = ""


@dataclass(frozen=True)
class Trouble:
    """The store cannot be read now (a sentence), or can again ("")."""

    sentence: str


Message = Update | Log | TaskDetail | Lists | Comparison | Roadmap | Trouble
Request = Callable[[Store], None]


class Feed:
    """Follows `run_id` (None: the active or newest run). `post` is called from the feed's own thread."""

    def __init__(self, url: str, run_id: str | None, post: Callable[[Message], None]) -> None:
        self.url = url
        self.run_id = run_id
        self.beat = time.monotonic()  # the last time a look at the store came to an end
        self._post = post
        self._requests: queue.SimpleQueue[tuple[str, Request] | None] = queue.SimpleQueue()
        self._reading = Reading()
        self._durations = Durations()
        self._bench = BenchReading()
        self._bench_stale = False
        self._bench_at = 0.0
        self._troubled = False
        self._lists_wanted = False
        self._awaited: tuple[str, str, float] | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; one that hangs in a locked store is left behind, it is a daemon."""
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    # What views ask; each returns at once and the answer comes as a message.

    def show_run(self, run_id: str) -> None:
        self._ask("run", lambda store: self._open_run(store, run_id))

    def show_log(self, task_key: str | None) -> None:
        self._ask("log", lambda store: self._send_log(store, task_key))

    def show_task(self, task_key: str) -> None:
        self._ask("task", lambda store: self._send_detail(store, task_key))

    def want_lists(self, wanted: bool) -> None:
        """Whether runs and to-dos are sent whenever the store moves."""
        self._ask("lists", lambda store: self._set_lists(store, wanted))

    def show_comparison(self, old: str, new: str) -> None:
        self._ask("compare", lambda store: self._compare(store, old, new))

    def show_roadmap(self) -> None:
        self._ask("roadmap", self._send_roadmap)

    def look_again(self) -> None:
        """Look at the store now rather than at the next poll."""
        self._ask("look", lambda store: None)

    def await_run(self, graph: str, host: str, since: float) -> None:
        """Show the run of this graph and host that begins after `since`, as soon as there is one."""
        self._ask("await", lambda store: self._set_awaited((graph, host, since)))

    def _ask(self, kind: str, request: Request) -> None:
        """Of several waiting requests of a kind only the last is answered: a key held down costs one log, not fifty."""
        self._requests.put((kind, request))

    # The thread

    def _run(self) -> None:
        while True:
            try:
                with contextlib.closing(self._open()) as store:
                    self._follow(store)
                    return
            except Exception as error:  # whatever the store or its driver raises: say so and try again
                self._troubled = True
                self._post(Trouble(vanished(error)))
                if self._stopped_within(RETRY_S):
                    return

    def _open(self) -> Store:
        return open_store(self.url, read_only=True)

    def _follow(self, store: Store) -> None:
        identity = _file_identity(self.url)
        self._open_run(store, self.run_id)
        while True:
            self._recovered()
            waiting = self._waiting_requests()
            if waiting is None:
                return
            for request in waiting.values():
                request(store)
            self._check_same_file(identity)
            self._advance(store)

    def _waiting_requests(self) -> dict[str, Request] | None:
        """The last request of each kind, {} when none came in time; None when the thread is to end."""
        found: dict[str, Request] = {}
        with contextlib.suppress(queue.Empty):
            item = self._requests.get(timeout=self._patience())
            while item is not None:
                found.pop(item[0], None)
                found[item[0]] = item[1]
                item = self._requests.get_nowait()
            return None
        return found

    def _patience(self) -> float:
        run = self._reading.run
        return POLL_ACTIVE_S if run is not None and run.state.active else POLL_IDLE_S

    def _advance(self, store: Store) -> None:
        reading, delta = advance(store, self._reading)
        self.beat = time.monotonic()
        self._reading = reading
        self._bench_stale |= bool(delta.facts & {"bench.row", "bench.result"})
        measured = self._measure()
        if delta or measured:
            self._post(Update(reading, delta, self._durations, self._bench))
        if delta.store_moved:
            self._look_for_run(store)
            if self._lists_wanted:
                self._send_lists(store)

    def _measure(self) -> bool:
        """Brings the benchmark's figures up to date, at most once a second: its intervals are drawn anew each time."""
        if not self._bench_stale or time.monotonic() - self._bench_at < BENCH_EVERY_S:
            return False
        self._bench = bench_reading(self._reading)
        self._bench_stale, self._bench_at = False, time.monotonic()
        return True

    def _open_run(self, store: Store, run_id: str | None) -> None:
        self._reading = first_reading(store, pick_run(store, run_id))
        self.beat = time.monotonic()
        run = self._reading.run
        self.run_id = run.id if run else None
        self._durations, self._bench = Durations(), BenchReading()
        self._post(Update(self._reading, Delta(), self._durations, fresh=True))
        if run is None:
            return
        self._durations = earlier_durations(store, run)
        self._bench_stale, self._bench_at = True, 0.0
        self._measure()
        self._post(Update(self._reading, Delta(run_changed=True), self._durations, self._bench))

    def _look_for_run(self, store: Store) -> None:
        if self._awaited is not None:
            graph, host, since = self._awaited
            newest = store.runs.latest(host, graph)
            if newest is not None and newest.created_at >= since:
                self._awaited = None
                self._open_run(store, newest.id)
        elif self._reading.run is None and pick_run(store, None):
            self._open_run(store, None)

    def _set_awaited(self, awaited: tuple[str, str, float]) -> None:
        self._awaited = awaited

    def _set_lists(self, store: Store, wanted: bool) -> None:
        self._lists_wanted = wanted
        if wanted:
            self._send_lists(store)

    def _send_lists(self, store: Store) -> None:
        self._post(Lists(tuple(store.runs.list()), tuple(reasons.todos(store))))

    def _compare(self, store: Store, old: str, new: str) -> None:
        runs = store.runs.get(old), store.runs.get(new)
        tasks = [store.tasks.list(run.id) for run in runs]
        self._post(Comparison(tuple(compare_page(runs[0], tasks[0], runs[1], tasks[1]))))

    def _send_roadmap(self, store: Store) -> None:
        self._post(Roadmap(*reasons.roadmap(store)))

    def _send_log(self, store: Store, task_key: str | None) -> None:
        if self._reading.run is None:
            return
        run_id = self._reading.run.id
        events = store.events.latest(LOG_EVENTS, run_id, task_key)
        events = [event for event in events if event.seq <= self._reading.seq]  # newer ones come with the next update
        lines = tuple(item for event in events for item in log_lines(event))
        missing = 0 if len(events) < LOG_EVENTS else max(0, store.events.count(run_id) - len(events))
        self._post(Log(run_id, task_key, lines, missing))

    def _send_detail(self, store: Store, task_key: str) -> None:
        task = self._reading.tasks.get(task_key)
        if task is None:
            return
        evidence = store.evidence.get(task.evidence_id) if task.evidence_id is not None else None
        explained = tuple(reasons.explained(store, task.run_id, task_key))
        self._post(TaskDetail(task.run_id, task_key, evidence, explained))

    def _recovered(self) -> None:
        if self._troubled:
            self._troubled = False
            self._post(Trouble(""))

    def _check_same_file(self, identity: tuple[int, int] | None) -> None:
        if identity is not None and _file_identity(self.url) != identity:
            raise FileNotFoundError("its file was moved or removed")

    def _stopped_within(self, seconds: float) -> bool:
        """Waits; requests of meanwhile are dropped, the views ask again after the trouble."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if self._requests.get(timeout=left) is None:
                    return True
        return False


def _file_identity(url: str) -> tuple[int, int] | None:
    """Device and inode of an SQLite store; None for another store, (0, 0) for a file that is not there."""
    if not url.startswith("sqlite:///"):
        return None
    try:
        found = os.stat(Path(url.removeprefix("sqlite:///")))
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino
