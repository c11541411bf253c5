"""How values are written for a person: times, sizes, signs. One place, for the screen and for plain lines."""

from __future__ import annotations

import time
from enum import StrEnum

from orchestrator.graph.model import State
from orchestrator.store.jsontext import clean_text
from orchestrator.store.records import RunState

MAX_LINE = 4_000


class Tone(StrEnum):
    """What a piece of text means; a theme gives it a colour, and a word or sign always says the same."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    BUSY = "busy"


SIGNS: dict[State, tuple[str, Tone]] = {
    State.PENDING: ("·", Tone.DIM),
    State.IN_PROGRESS: ("▶", Tone.BUSY),
    State.COMPLETED: ("✓", Tone.GOOD),
    State.FAILED: ("✗", Tone.BAD),
    State.CANCELLED: ("⊘", Tone.WARN),
    State.SKIPPED: ("–", Tone.DIM),
    State.UNKNOWN: ("?", Tone.WARN),
    State.ROLLED_BACK: ("↶", Tone.WARN),
}
STATE_WORDS: dict[State, str] = {state: state.value.replace("_", " ") for state in State}

_RUN_TONES: dict[RunState, Tone] = {
    RunState.PENDING: Tone.DIM,
    RunState.RUNNING: Tone.BUSY,
    RunState.ROLLING_BACK: Tone.WARN,
    RunState.COMPLETED: Tone.GOOD,
    RunState.FAILED: Tone.BAD,
    RunState.CANCELLED: Tone.WARN,
    RunState.INTERRUPTED: Tone.WARN,
    RunState.ROLLED_BACK: Tone.WARN,
    RunState.ROLLBACK_UNVERIFIED: Tone.BAD,
}


def run_state(state: RunState) -> tuple[str, Tone]:
    return state.value.replace("_", " "), _RUN_TONES[state]


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12.3 s`, `4:05`, `1:02:03`, `3 d 04 h`; `` for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def roughly(seconds: float) -> str:
    """A duration nobody should read as exact: `about 40 s`, `about 6 min`, `about 2.5 h`."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def clock_time(at: float | None) -> str:
    """Time of day, local."""
    return "" if at is None else time.strftime("%H:%M:%S", time.localtime(at))


def date_time(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def number(value: object, digits: int = 2) -> str:
    """A figure, or `–` when it is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def amount(value: float) -> str:
    """How far something is: whole from ten on, else at most one digit after the point."""
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def mebibytes(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def bar(share: float, width: int) -> str:
    """A filled bar of `width` cells for a share of 0 to 1, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(width, "░")


def one_line(text: object, limit: int = MAX_LINE) -> str:
    """Text from a host or a user, harmless to a terminal, on one line, with a mark where it was cut."""
    line = clean_text(str(text)).replace("\n", " ⏎ ").expandtabs(4)
    return line if len(line) <= limit else f"{line[:limit]}… ({len(line) - limit:,} more characters)"
