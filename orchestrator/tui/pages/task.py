"""One task: what it is, what it waits for and why, what proves it, what it would change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.graph.model import State
from orchestrator.store.records import EvidenceRecord, TaskRecord
from orchestrator.tui.blocks import Block, Diff, Page, Span, line
from orchestrator.tui.model import Reading
from orchestrator.tui.words import SIGNS, STATE_WORDS, Tone, clock_time, date_time, duration, one_line

SHOWN_VALUE = 400


def why_page(reading: Reading, key: str, explained: Sequence[str], now: float) -> list[Block]:
    """What the task is, its state in words, and the reasons that the graph gives."""
    task = reading.tasks[key]
    sign, tone = SIGNS[task.state]
    page = Page()
    page.heading(task.content)
    page.pairs(
        ("task", Span(task.key, Tone.STRONG)),
        ("state", line(Span(f"{sign} {STATE_WORDS[task.state]}", tone), _step(task))),
        ("phase", task.phase),
        ("priority", str(task.priority)),
        ("host", line(task.host, ", which it changes" if task.changes_host else ", which it only looks at")),
        ("attempts", str(task.attempts)),
        ("time", _time(task, now)),
        *((("progress", str(reading.progress[key])),) if key in reading.progress else ()),
        *((("reason", Span(task.reason, tone)),) if task.reason else ()),
    )
    page.heading("Waits for")
    _waits(page, reading, task)
    if explained:
        page.heading("Why")
        for sentence in explained:
            page.say(sentence)
    if task.inputs:
        page.heading("Depends on these inputs")
        page.pairs(*((name, value) for name, value in _values(task.inputs.get("inputs", task.inputs))))
    if task.output:
        page.heading("Result")
        page.pairs(*((name, value) for name, value in _values(task.output)))
    return page.blocks


def evidence_page(task: TaskRecord, evidence: EvidenceRecord | None, now: float) -> list[Block]:
    page = Page()
    if evidence is None:
        page.say(_no_evidence(task))
        return page.blocks
    page.heading("Evidence")
    page.pairs(
        ("checked", evidence.checked),
        ("said", evidence.output),
        ("proved", f"{date_time(evidence.at)}, in run {evidence.proved_by_run}"),
        ("holds", _holds(evidence, now)),
        ("sha256", evidence.sha256),
    )
    if evidence.data:
        page.heading("Figures")
        page.pairs(*_values(evidence.data))
    return page.blocks


def changes_page(
    task: TaskRecord, changes: Sequence[Mapping[str, Any]] | None, problem: str = "", *, asking: bool = False
) -> list[Block]:
    """What the plan says this task would change on the host, with diffs. None: the plan was not asked for yet."""
    page = Page()
    page.heading("What the plan would change")
    if asking:
        page.say("The host is being asked …")
    elif problem:
        page.say(Span(problem, Tone.BAD))
    elif changes is None:
        page.say("Press p to ask the host now; that only looks and changes nothing.")
    elif not changes:
        page.say("Nothing: as the host is now, this task changes nothing on it.")
    for change in changes or ():
        page.pairs((str(change.get("kind", "?")), line(Span(str(change.get("target", "?")), Tone.STRONG),
                                                      f"  {change.get('detail', '')}")))  # fmt: skip
        if change.get("diff"):
            page.blocks.append(Diff(tuple(str(change["diff"]).splitlines())))
    return page.blocks


def _step(task: TaskRecord) -> str:
    return f", {task.step}" if task.step and task.state is State.IN_PROGRESS else ""


def _time(task: TaskRecord, now: float) -> str:
    if task.started_at is None:
        return "not started"
    since = clock_time(task.started_at)
    if task.state is State.IN_PROGRESS:
        return f"{duration(now - task.started_at)} so far, since {since}"
    return f"{duration(task.duration_s)}, from {since} to {clock_time(task.finished_at)}"


def _waits(page: Page, reading: Reading, task: TaskRecord) -> None:
    waiting = reading.waits_for(task.key)
    for item in waiting:
        sign, tone = SIGNS[item.state]
        page.say(Span(f"{sign} {STATE_WORDS[item.state]}", tone), f"  {item.key}: {item.content}")
    if waiting:
        return
    if task.state is State.PENDING and reading.run is not None:
        going = reading.run.state.active and not reading.process_gone
        page.say("nothing: it is ready and starts when the host has room" if going else "someone to resume the run")
    else:
        page.say("nothing")


def _no_evidence(task: TaskRecord) -> str:
    if task.state is State.SKIPPED:
        return f"There is none: the task was skipped ({task.reason})."
    return f"There is none yet: the task is {STATE_WORDS[task.state]}, and only its proof makes it completed."


def _holds(evidence: EvidenceRecord, now: float) -> Span:
    if evidence.contradicted_reason:
        return Span(f"no longer: {evidence.contradicted_reason}", Tone.BAD)
    if evidence.expires_at is None:
        return Span("until something contradicts it", Tone.GOOD)
    if evidence.expired(now):
        return Span(f"no longer: it expired at {date_time(evidence.expires_at)}", Tone.WARN)
    return Span(f"until {date_time(evidence.expires_at)}", Tone.GOOD)


def _values(data: object) -> list[tuple[str, str]]:
    if not isinstance(data, Mapping):
        return [("value", _short(data))]
    return [(str(name), _short(value)) for name, value in sorted(data.items())]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return one_line(text, SHOWN_VALUE)
