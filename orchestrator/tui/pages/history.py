"""Runs so far, and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.store.records import RunRecord, TaskRecord
from orchestrator.tui.blocks import Block, Page, Span
from orchestrator.tui.words import SIGNS, STATE_WORDS, Tone, date_time, duration, run_state

COLUMNS = ("", "run", "graph", "host", "state", "exit", "time")


def history_rows(runs: Sequence[RunRecord], shown: str | None, marked: str | None, now: float) -> list[list[Span]]:
    """One row a run, newest first; `shown` is on the run view, `marked` is to be compared."""
    return [_run(run, shown, marked, now) for run in runs]


def history_page(runs: Sequence[RunRecord], shown: str | None, now: float) -> list[Block]:
    """Every run with all that is known of it."""
    page = Page()
    page.heading("Runs")
    if not runs:
        page.say("none yet")
    for run in runs:
        page.say(*(("shown now: ",) if run.id == shown else ()), Span(run.id, Tone.STRONG))
        page.blocks.append(_details(run, now))
    return page.blocks


def one_run_page(run: RunRecord, now: float) -> list[Block]:
    page = Page()
    page.heading(run.id)
    page.blocks.append(_details(run, now))
    page.say(Span("Enter shows this run, space marks it, d compares it with the marked one.", Tone.DIM))
    return page.blocks


def _details(run: RunRecord, now: float) -> Block:
    word, tone = run_state(run.state)
    page = Page()
    page.pairs(
        ("graph", f"{run.graph} on {run.host}"),
        ("state", Span(word, tone)),
        ("exit code", _code(run)),
        ("reason", run.reason or "–"),
        ("started", f"{date_time(run.created_at)} by {run.started_by} from {run.started_from}"),
        ("time", duration((run.finished_at or now) - run.created_at)),
    )
    return page.blocks[0]


def compare_page(
    old: RunRecord, old_tasks: Sequence[TaskRecord], new: RunRecord, new_tasks: Sequence[TaskRecord]
) -> list[Block]:
    """What differs between two runs: ends, settings, and each task's state and time."""
    page = Page()
    page.heading(f"{old.id} and {new.id}")
    page.table(("", old.id, new.id), [*_ends(old, new), *_settings(old, new)])
    page.heading("Tasks")
    before, after = {task.key: task for task in old_tasks}, {task.key: task for task in new_tasks}
    keys = list(dict.fromkeys([*before, *after]))
    page.table(("task", "then", "now", "time then", "now", "change"), [_task(k, before.get(k), after.get(k)) for k in keys],
               ("time then", "now", "change"))  # fmt: skip
    return page.blocks


def _run(run: RunRecord, shown: str | None, marked: str | None, now: float) -> list[Span]:
    word, tone = run_state(run.state)
    mark = ("▶" if run.id == shown else "") + ("✱" if run.id == marked else "")
    cells: list[str | Span] = [
        Span(mark, Tone.BUSY), Span(run.id, Tone.STRONG), run.graph, run.host, Span(word, tone),
        "" if run.exit_code is None else str(run.exit_code), duration((run.finished_at or now) - run.created_at),
    ]  # fmt: skip
    return [cell if isinstance(cell, Span) else Span(cell) for cell in cells]


def _ends(old: RunRecord, new: RunRecord) -> list[list[str | Span]]:
    rows: list[list[str | Span]] = []
    for name, values in (
        ("graph", (old.graph, new.graph)), ("host", (old.host, new.host)),
        ("state", (run_state(old.state)[0], run_state(new.state)[0])),
        ("exit code", (_code(old), _code(new))), ("reason", (old.reason or "–", new.reason or "–")),
        ("started", (date_time(old.created_at), date_time(new.created_at))),
        ("graph shape", (old.definition, new.definition)),
    ):  # fmt: skip
        same = values[0] == values[1] or name == "started"
        rows.append([name, values[0], Span(values[1], Tone.PLAIN if same else Tone.WARN)])
    return rows


def _code(run: RunRecord) -> str:
    return "–" if run.exit_code is None else str(run.exit_code)


def _settings(old: RunRecord, new: RunRecord) -> list[list[str | Span]]:
    return [
        [f"--set {name}", old.settings.get(name, "–"), Span(new.settings.get(name, "–"), Tone.WARN)]
        for name in sorted({*old.settings, *new.settings})
        if old.settings.get(name) != new.settings.get(name)
    ]


def _task(key: str, old: TaskRecord | None, new: TaskRecord | None) -> list[str | Span]:
    before, after = (task.duration_s if task else None for task in (old, new))
    change = f"{after - before:+.1f} s" if before is not None and after is not None else ""
    return [key, _state(old), _state(new), duration(before), duration(after), change]


def _state(task: TaskRecord | None) -> Span:
    if task is None:
        return Span("not there", Tone.DIM)
    sign, tone = SIGNS[task.state]
    return Span(f"{sign} {STATE_WORDS[task.state]}", tone)
