"""What a person can do from the TUI: each action says exactly what will happen and is a command of this program."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.graph.model import State
from orchestrator.store.records import TaskRecord
from orchestrator.tui.model import Reading
from orchestrator.tui.words import STATE_WORDS, clock_time

Answers = Mapping[str, str]
LISTED = 6
MAIN_GRAPH = "deploy-ddtree"


@dataclass(frozen=True)
class Field:
    """Something to fill in. `choices` makes it a choice; `must_be` is the text that confirms."""

    name: str
    label: str
    value: str = ""
    choices: tuple[str, ...] = ()
    must_be: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Proposal:
    """An action that waits for a yes: its effects in sentences, and the command line that it is."""

    title: str
    effects: tuple[str, ...]
    command: Callable[[Answers], tuple[str, ...]]
    fields: tuple[Field, ...] = ()
    verb: str = "Do it"
    starts_run: bool = False


def still_missing(fields: Sequence[Field], answers: Answers) -> str:
    """What still keeps an action from being done, "" when nothing does."""
    for field in fields:
        value = answers.get(field.name, "").strip()
        if field.must_be and value != field.must_be:
            return f"type {field.must_be} to confirm"
        if not value and not field.optional:
            return f"fill in: {field.label}"
    return ""


@dataclass(frozen=True)
class Refusal:
    """Why an action is not possible now, and what would make it possible."""

    sentence: str


@dataclass(frozen=True)
class Scene:
    """What actions depend on: the run shown, the task under the cursor, and what may be chosen."""

    reading: Reading
    task: TaskRecord | None = None
    graphs: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


Offer = Proposal | Refusal


def new_run(scene: Scene) -> Offer:
    if not scene.graphs or not scene.hosts:
        return Refusal("there is no graph or no host to run: check hosts.yaml with `orchestrate doctor`")
    run = scene.reading.run
    usual = MAIN_GRAPH if MAIN_GRAPH in scene.graphs else scene.graphs[0]
    graph = run.graph if run and run.graph in scene.graphs else usual
    host = run.host if run and run.host in scene.hosts else scene.hosts[0]
    effects = (
        "A new run begins in a process of its own; closing this screen does not stop it.",
        "Tasks whose earlier proof still holds are reused, everything else is done again.",
        "A graph that changes the host locks it first; a failure after a change rolls back.",
    )
    fields = (
        Field("graph", "graph", graph, scene.graphs),
        Field("host", "host", host, scene.hosts),
        Field("settings", "settings, NAME=VALUE with spaces between (empty: none)", optional=True),
    )
    return Proposal(
        "Start a run", effects, lambda a: ("run", a["graph"], "--host", a["host"], *_settings(a), "--yes"), fields,
        "Start", starts_run=True,
    )  # fmt: skip


def resume(scene: Scene) -> Offer:
    run = scene.reading.run
    if run is None:
        return Refusal("there is no run to resume")
    left = scene.reading.left
    refused = _busy(scene.reading) or ("" if left else f"run {run.id} has nothing left to do")
    if refused:
        return Refusal(refused)
    effects = (
        f"Run {run.id} of {run.graph} on {run.host} goes on in a process of its own.",
        *_what_runs(left, run.host),
        "What was in progress is probed first; nothing is applied twice blindly.",
    )
    return Proposal("Resume the run", effects, lambda _: _resume(scene.reading), (), "Resume", starts_run=True)


def cancel(scene: Scene) -> Offer:
    run = scene.reading.run
    if run is None or not run.state.active:
        return Refusal("only a run that is being worked on can be cancelled")
    if scene.reading.process_gone:
        return Refusal("the process of this run is gone, there is nothing to stop: press r to resume it")
    running = [task.key for task in scene.reading.tasks.values() if task.state is State.IN_PROGRESS]
    effects = (
        f"Run {run.id} is asked to stop after the current effect"
        + (f" of {', '.join(running[:LISTED])}." if running else "."),
        "Nothing is undone: completed tasks stay as they are, and the run can be resumed.",
    )
    reason = Field("reason", "reason (recorded)", "cancelled in the TUI")
    return Proposal(
        "Cancel the run", effects, lambda a: ("cancel", run.id, "--reason", a["reason"]), (reason,), "Cancel the run"
    )


def retry_task(scene: Scene) -> Offer:
    task, refused = _chosen(scene)
    if task is None:
        return Refusal(refused)
    if task.state is State.SKIPPED:
        way = "resume the run" if task in scene.reading.left else "start a new run"
        return Refusal(f"task {task.key} was skipped ({task.reason}): {way} to have it done")
    if task.state not in (
        State.FAILED,
        State.CANCELLED,
        State.UNKNOWN,
        State.ROLLED_BACK,
        State.COMPLETED,
        State.PENDING,
    ):
        return Refusal(f"task {task.key} is {STATE_WORDS[task.state]}")
    forced = ("--force", task.key) if task.state is State.COMPLETED else ()
    waiting = _needed(scene.reading, task.key)
    effects = (
        f"Task {task.key} is done again: {task.content}"
        + (
            f" (now {STATE_WORDS[task.state]}: {task.reason})." if task.reason else f" (now {STATE_WORDS[task.state]})."
        ),
        *((f"What it needs is done first: {', '.join(waiting[:LISTED])}.",) if waiting else ()),
        _touches([*(scene.reading.tasks[key] for key in waiting), task]),
        "Everything after it waits until the run is resumed.",
    )
    return Proposal(
        "Retry one task", effects, lambda _: _resume(scene.reading, "--only", task.key, *forced), (), "Retry",
        starts_run=True,
    )  # fmt: skip


def skip_task(scene: Scene) -> Offer:
    task, refused = _chosen(scene)
    if task is None:
        return Refusal(refused)
    if task.why_not_skipped:
        return Refusal(task.why_not_skipped)
    if task.state in (State.COMPLETED, State.SKIPPED):
        return Refusal(f"task {task.key} is {STATE_WORDS[task.state]} already")
    after = [t.key for t in scene.reading.tasks.values() if task.key in t.depends_on]
    left = [item for item in scene.reading.left if item.key != task.key]
    effects = (
        f"Task {task.key} is left out: {task.content}.",
        *((f"These go on without its result: {', '.join(after[:LISTED])}.",) if after else ()),
        *_what_runs(left, task.host),
    )
    return Proposal(
        "Skip a task and go on", effects, lambda _: _resume(scene.reading, "--skip", task.key), (), "Skip",
        starts_run=True,
    )  # fmt: skip


def roll_back(scene: Scene) -> Offer:
    run = scene.reading.run
    if run is None:
        return Refusal("there is no host to roll back: no run is shown")
    host = run.host
    refused = _busy(scene.reading)
    if refused:
        return Refusal(f"{refused}; cancel it first")
    linear = [fact.data for fact in scene.reading.facts_of("release", host) if _linear_and_good(fact.data)]
    target = str(linear[-1].get("id", "?")) if linear else "the newest known-good linear release"
    effects = (
        f"The service on {host} is switched back to {target}, or to the release typed here, and that is proven.",
        "The service restarts: requests that are being answered then are cut off.",
        "Nothing is deleted; releases stay on the host.",
    )
    fields = (
        Field("to", "release (empty: the newest known-good linear one)", "", optional=True),
        Field("confirm", f"type the host's name, {host}", must_be=host),
    )

    def command(answers: Answers) -> tuple[str, ...]:
        to = answers.get("to", "").strip()
        return ("rollback", "--host", host, *(("--to", to) if to else ()), "--yes")

    return Proposal(f"Roll {host} back", effects, command, fields, "Roll back", starts_run=True)


def steal_lock(scene: Scene) -> Offer:
    lease = scene.reading.lease
    if lease is None:
        return Refusal("nobody holds the lock of this host")
    effects = (
        f"The lock of {lease.host} is taken from {lease.owner} (run {lease.run_id or 'none'}),"
        f" who held it since {clock_time(lease.acquired_at)} and showed life last at {clock_time(lease.heartbeat_at)}.",
        "If that run still lives, it stops at its next step. The theft and its reason are recorded.",
    )
    fields = (
        Field("reason", "reason (recorded)"),
        Field("confirm", f"type the host's name, {lease.host}", must_be=lease.host),
    )
    return Proposal(
        "Steal the lock", effects,
        lambda a: ("lock", "steal", "--host", lease.host, "--reason", a["reason"], "--yes"), fields, "Steal",
    )  # fmt: skip


ACTIONS: Mapping[str, tuple[str, str, Callable[[Scene], Offer]]] = {
    "new_run": ("R", "Start a run", new_run),
    "resume": ("r", "Resume the run", resume),
    "cancel": ("C", "Cancel the run", cancel),
    "retry_task": ("T", "Retry the task", retry_task),
    "skip_task": ("S", "Skip the task and go on", skip_task),
    "roll_back": ("B", "Roll the host back", roll_back),
    "steal_lock": ("K", "Steal the lock of the host", steal_lock),
}


def _linear_and_good(release: Mapping[str, object]) -> bool:
    good = bool(release.get("known_good")) or release.get("state") == "known-good"
    return good and release.get("algorithm") != "DDTREE"


def _settings(answers: Answers) -> tuple[str, ...]:
    """What was typed as --set options; the command itself refuses what it does not know."""
    text = answers.get("settings", "")
    try:
        parts = shlex.split(text)
    except ValueError:  # a quotation mark without its partner, as while typing
        parts = text.split()
    return tuple(word for part in parts for word in ("--set", part))


def _resume(reading: Reading, *more: str) -> tuple[str, ...]:
    assert reading.run is not None
    return ("run", reading.run.graph, "--host", reading.run.host, "--resume", reading.run.id, *more, "--yes")


def _busy(reading: Reading) -> str:
    run = reading.run
    if run is not None and run.state.active and not reading.process_gone:
        return f"run {run.id} is being worked on"
    return ""


def _needed(reading: Reading, key: str) -> list[str]:
    """The tasks that are done with this one because it needs them, in the order of the graph."""
    needed, more = set[str](), [key]
    while more:
        task = reading.tasks.get(more.pop())
        new = set(task.depends_on) - needed if task else set[str]()
        needed |= new
        more += new
    return [task.key for task in reading.left if task.key in needed]


def _chosen(scene: Scene) -> tuple[TaskRecord | None, str]:
    if scene.task is None:
        return None, "put the cursor on a task first"
    busy = _busy(scene.reading)
    return (None, f"{busy}; cancel it first") if busy else (scene.task, "")


def _what_runs(tasks: Sequence[TaskRecord], host: str) -> tuple[str, ...]:
    names = ", ".join(task.key for task in tasks[:LISTED]) + (
        f" and {len(tasks) - LISTED} more" if len(tasks) > LISTED else ""
    )
    return (f"{len(tasks)} tasks are left: {names}." if tasks else "No other task is left.", _touches(tasks))


def _touches(tasks: Sequence[TaskRecord]) -> str:
    changing = [task.key for task in tasks if task.changes_host]
    if not changing:
        return "None of them changes the host." if len(tasks) > 1 else "It changes nothing on the host."
    hosts = ", ".join(sorted({task.host for task in tasks if task.changes_host}))
    return f"These change {hosts}: {', '.join(changing[:LISTED])}" + (" and more." if len(changing) > LISTED else ".")
