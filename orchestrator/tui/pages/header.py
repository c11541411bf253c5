"""The header: which run, how it stands, who holds the host, what serves, what the verdict may become."""

from __future__ import annotations

from orchestrator.graph.model import State
from orchestrator.tui.benchreading import NO_VERDICT
from orchestrator.tui.blocks import Line, Span, line
from orchestrator.tui.eta import Durations
from orchestrator.tui.model import Reading
from orchestrator.tui.pages.host import current_release
from orchestrator.tui.words import SIGNS, STATE_WORDS, Tone, clock_time, duration, roughly, run_state


def header(reading: Reading, durations: Durations, left: float | None, verdict: str, now: float) -> list[Line]:
    """Segments; the screen puts as many on a line as fit."""
    run = reading.run
    if run is None:
        return [line(Span("No run in this store yet", Tone.STRONG)), line("press R for a new run")]
    word, tone = run_state(run.state)
    parts = [
        line(Span(run.graph, Tone.STRONG), " on ", Span(run.host, Tone.STRONG)),
        line(f"run {run.id}"),
        line(Span(word.upper(), tone), f" {duration((run.finished_at or now) - run.created_at)}"),
        line(_counts(reading)),
    ]
    if run.state.active and not reading.process_gone:
        parts.append(line(_eta(durations, left)))
    parts += [line("release ", _release(reading)), line("lock ", _lock(reading, now))]
    if run.state.active or verdict != NO_VERDICT:
        parts.append(line("verdict ", Span(verdict)))
    if reading.process_gone:
        parts.append(line(Span("its process is gone: press r to resume", Tone.BAD)))
    if run.cancel_reason and run.state.active:
        parts.append(line(Span(f"asked to stop: {run.cancel_reason}", Tone.WARN)))
    if run.reason and not run.state.active:
        parts.append(line(Span(run.reason, tone)))
    return parts


def _counts(reading: Reading) -> str:
    done = len(reading.tasks) - len(reading.left)
    others = [
        f"{SIGNS[state][0]} {reading.counts[state]} {STATE_WORDS[state]}"
        for state in (State.IN_PROGRESS, State.FAILED, State.UNKNOWN, State.ROLLED_BACK, State.CANCELLED)
        if reading.counts[state]
    ]
    return ", ".join([f"{done} of {len(reading.tasks)} tasks done", *others])


def _eta(durations: Durations, left: float | None) -> str:
    if left is None:
        return "time left unknown: no earlier run"
    return f"{roughly(left)} left, by {durations.runs} earlier run{'s' if durations.runs != 1 else ''}"


def _release(reading: Reading) -> Span:
    host = reading.run.host if reading.run else None
    data = current_release(reading, host)
    if data is None:
        serving = reading.facts_of("service", host)
        algorithm = serving[-1].data.get("algorithm") if serving else None
        return Span(f"not recorded yet, {algorithm} serves" if algorithm else "not known", Tone.DIM)
    return Span(f"{data.get('id', '?')} ({data.get('algorithm', '?')})")


def _lock(reading: Reading, now: float) -> Span:
    lease = reading.lease
    if lease is None:
        return Span("free", Tone.DIM)
    if now > lease.expires_at:
        return Span(f"{lease.owner}, silent since {clock_time(lease.heartbeat_at)}", Tone.WARN)
    other = reading.run is not None and lease.run_id not in (None, reading.run.id)
    return Span(f"{lease.owner}" + (f" for run {lease.run_id}" if other else ""), Tone.WARN if other else Tone.PLAIN)
