"""The TUI's twin without a screen: everything that the views show, as lines, then each event as a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from orchestrator.errors import ExitCode, StoreError
from orchestrator.graph.model import State
from orchestrator.store.records import Event
from orchestrator.store.store import Store, open_store
from orchestrator.tui.benchreading import bench_reading
from orchestrator.tui.blocks import plain_lines, text_of
from orchestrator.tui.eta import Durations, earlier_durations, seconds_left
from orchestrator.tui.logtext import log_lines, without_passed
from orchestrator.tui.model import Delta, Reading, advance, first_reading, pick_run
from orchestrator.tui.pages.bench import bench_page
from orchestrator.tui.pages.header import header
from orchestrator.tui.pages.history import history_page
from orchestrator.tui.pages.host import host_page
from orchestrator.tui.pages.run import run_page
from orchestrator.tui.pages.task import evidence_page, why_page
from orchestrator.tui.pages.todo import todo_page
from orchestrator.tui.reasons import explained, roadmap, todos
from orchestrator.tui.words import SIGNS, STATE_WORDS, clock_time, duration

POLL_S, PATIENCE_S = 0.25, 60.0
LOG_EVENTS = 200
Say = Callable[[str], None]


def follow_plain(url: str, run_id: str | None, say: Say, clock: Callable[[], float] = time.time) -> int:
    """Prints what there is, then what happens until the run ends; returns the run's exit code (0 without a run).

    A store that cannot be read for a while is waited for; StoreError when that lasts longer than PATIENCE_S.
    """
    with open_store(url, read_only=True) as store:
        reading = first_reading(store, pick_run(store, run_id))
        for line in everything(store, reading, clock()):
            say(line)
        if reading.run is None:
            return ExitCode.DONE
        while not reading.finished:
            if reading.process_gone:
                say(f"the process of run {reading.run.id} is gone: `orchestrate run {reading.run.graph} --resume"
                    f" {reading.run.id}` goes on")  # fmt: skip
                return ExitCode.INTERRUPTED
            time.sleep(POLL_S)
            reading, delta = _patiently(store, reading, say)
            for line in news(reading, delta):
                say(line)
        for line in _head(store, reading, clock()):
            say(line)
        return reading.run.exit_code if reading.run and reading.run.exit_code is not None else ExitCode.DONE


def everything(store: Store, reading: Reading, now: float) -> Iterator[str]:
    """All views, top to bottom."""
    yield from _head(store, reading, now)
    yield from plain_lines(run_page(reading, now))
    for phase, tasks in reading.phases.items():
        yield f"== Phase {phase} =="
        for task in tasks:
            running = task.state is State.IN_PROGRESS and task.started_at is not None
            took = duration(now - (task.started_at or now) if running else task.duration_s)
            yield (
                f"{task.key}: {STATE_WORDS[task.state]}; {task.content}; priority {task.priority}; attempts"
                f" {task.attempts}" + (f"; time {took}" if took else "") + (f"; {task.reason}" if task.reason else "")
            )
            yield from _details(store, reading, task.key, now)
    yield from plain_lines(host_page(reading, now))
    yield "== Benchmark =="
    yield from plain_lines(bench_page(bench_reading(reading)))
    yield from plain_lines(history_page(store.runs.list(), reading.run.id if reading.run else None, now))
    yield from plain_lines(todo_page(todos(store)))
    document, problem = roadmap(store)
    yield "== Roadmap =="
    yield from (document or f"There is no roadmap yet: {problem}").splitlines()
    if reading.run is not None:
        yield f"== Log, the newest {LOG_EVENTS} events =="
        yield from _stamped(store.events.latest(LOG_EVENTS, reading.run.id, None))


def _stamped(events: Iterable[Event]) -> Iterator[str]:
    for line in without_passed(line for event in events for line in log_lines(event)):
        yield f"{clock_time(line.at)}  " + (f"{line.task_key}: " if line.task_key else "") + line.text


def news(reading: Reading, delta: Delta) -> Iterator[str]:
    """Each event as `time  task: text`."""
    return _stamped(delta.events)


def _details(store: Store, reading: Reading, key: str, now: float) -> Iterator[str]:
    """Reasons for what is not done, proof for what is."""
    task = reading.tasks[key]
    if task.state is State.COMPLETED and task.evidence_id is not None:
        evidence = store.evidence.get(task.evidence_id)
        yield from (
            f"  {line}" for line in plain_lines(evidence_page(task, evidence, now)) if not line.startswith("==")
        )
    elif task.state in (State.FAILED, State.UNKNOWN, State.IN_PROGRESS):
        page = why_page(reading, key, explained(store, task.run_id, key), now)
        yield from (f"  {line}" for line in plain_lines(page))
    else:
        waits = ", ".join(
            f"{item.key} ({SIGNS[item.state][0]} {STATE_WORDS[item.state]})" for item in reading.waits_for(key)
        )
        if waits:
            yield f"  waits for: {waits}"


def _head(store: Store, reading: Reading, now: float) -> Iterator[str]:
    durations = earlier_durations(store, reading.run) if reading.run else Durations()
    yield from (
        text_of(part)
        for part in header(
            reading, durations, seconds_left(reading, durations, now), bench_reading(reading).sentence, now
        )
    )


def _patiently(store: Store, reading: Reading, say: Say) -> tuple[Reading, Delta]:
    deadline, said = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            return advance(store, reading)
        except StoreError as error:
            if time.monotonic() > deadline:
                raise
            if not said:
                say(f"waiting for the store: {error}")
                said = True
            time.sleep(1.0)
