"""The run as a whole: who started it, how it stands, its phases."""

from __future__ import annotations

from orchestrator.graph.model import State
from orchestrator.tui.blocks import Block, Page, Span
from orchestrator.tui.model import Reading
from orchestrator.tui.words import SIGNS, STATE_WORDS, Tone, date_time, duration, run_state


def run_page(reading: Reading, now: float) -> list[Block]:
    page = Page()
    run = reading.run
    if run is None:
        page.say("There is no run in this store yet. Press R to start one.")
        return page.blocks
    word, tone = run_state(run.state)
    page.heading(f"Run {run.id}")
    page.pairs(
        ("graph", run.graph),
        ("host", run.host),
        ("state", Span(word, tone)),
        ("started", f"{date_time(run.created_at)} by {run.started_by} from {run.started_from}"),
        ("time", duration((run.finished_at or now) - run.created_at)),
        *((("exit code", str(run.exit_code)),) if run.exit_code is not None else ()),
        *((("reason", Span(run.reason, tone)),) if run.reason else ()),
        *((("outcome", run.outcome.reason),) if run.outcome else ()),
        *((("settings", ", ".join(f"{k}={v}" for k, v in sorted(run.settings.items()))),) if run.settings else ()),
    )
    page.heading("Phases")
    page.table(
        ("phase", "done", "tasks", "state"), [_phase(name, reading) for name in reading.phases], ("done", "tasks")
    )
    return page.blocks


def _phase(name: str, reading: Reading) -> list[str | Span]:
    tasks = reading.phases[name]
    done = sum(task.state in (State.COMPLETED, State.SKIPPED) for task in tasks)
    worst = next((s for s in _WORST if any(task.state is s for task in tasks)), State.COMPLETED)
    sign, tone = SIGNS[worst]
    return [
        name,
        str(done),
        str(len(tasks)),
        Span(f"{sign} {STATE_WORDS[worst]}", tone if worst is not State.PENDING else Tone.DIM),
    ]


_WORST = (State.FAILED, State.UNKNOWN, State.IN_PROGRESS, State.ROLLED_BACK, State.CANCELLED, State.PENDING)
