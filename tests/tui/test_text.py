"""Text from hosts and other programs: whatever it holds, it ends up harmless and whole on a screen of any width."""

from __future__ import annotations

import unicodedata
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from orchestrator.store.records import Event
from orchestrator.tui.blocks import Pairs, Para, Span, Table, plain_lines
from orchestrator.tui.logtext import log_lines
from orchestrator.tui.widgets.logview import wrap
from orchestrator.tui.words import MAX_LINE, bar, duration, one_line, roughly

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
KINDS = st.sampled_from(
    [
        "log",
        "progress",
        "metric",
        "artifact",
        "fact",
        "task.completed",
        "task.claimed",
        "task.failed",
        "run.finished",
        "",
    ]
) | st.text(max_size=20)
FIELDS = st.dictionaries(
    st.sampled_from(["line", "text", "done", "total", "name", "value", "labels", "size", "reason", "traceback", "kind"])
    | st.text(max_size=8),
    JSON,
    max_size=6,
)


def harmful(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cs") or c in "\u202a\u202e\u2066\u2069"]


@UNHURRIED
@given(KINDS, FIELDS | JSON)
def test_any_event_becomes_harmless_lines(kind: str, data: Any) -> None:
    lines = log_lines(Event(1, "r1", "task", kind, data, 0.0, 1))
    assert lines
    for line in lines:
        assert not harmful(line.text)


@UNHURRIED
@given(st.text(max_size=300))
def test_one_line_is_one_harmless_line(text: str) -> None:
    assert not harmful(one_line(text))
    assert len(one_line(text * 50)) <= MAX_LINE + 40


def test_escape_sequences_become_visible() -> None:
    line = log_lines(Event(1, "r", "t", "log", {"line": "\x1b[31mred\x1b]0;title\x07 \x9b2J"}, 0.0, 1))[0]
    assert line.text == "\\u001b[31mred\\u001b]0;title\\u0007 \\u009b2J"


def test_a_line_with_breaks_becomes_several() -> None:
    lines = log_lines(Event(1, "r", "t", "log", {"line": "one\ntwo\r\nthree\rfour"}, 0.0, 1))
    assert [line.text for line in lines] == ["one", "two", "three", "four"]


@UNHURRIED
@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs")), max_size=400), st.integers(8, 120))
def test_wrapping_loses_no_word_and_fits(text: str, width: int) -> None:
    parts = wrap(text, width)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(part) <= width for part in parts)


def test_wrapping_cuts_at_spaces() -> None:
    assert wrap("alpha beta gamma", 11) == ["alpha beta", "gamma"]
    assert wrap("漢字漢字漢字", 5) == ["漢字", "漢字", "漢字"]


def test_durations_and_bars() -> None:
    assert [duration(value) for value in (None, 0.42, 59.94, 61, 3725)] == ["", "0.4 s", "59.9 s", "1:01", "1:02:05"]
    assert [roughly(value) for value in (2, 42, 600, 9000)] == [
        "about 5 s",
        "about 40 s",
        "about 10 min",
        "about 2.5 h",
    ]
    assert [bar(share, 4) for share in (0, 0.5, 1, 7, -1)] == ["░░░░", "██░░", "████", "████", "░░░░"]
    assert all(len(bar(share / 97, 10)) == 10 for share in range(98))


def test_plain_lines_name_every_cell() -> None:
    table = Table(("", "name", "load"), ((Span("█"), Span("gpu0"), Span("7 %")),))
    pairs = Pairs((("state", (Span("✓ completed"),)),))
    assert list(plain_lines([table, pairs, Para((Span("a"), Span("b")))])) == [
        "name: gpu0; load: 7 %", "state: ✓ completed", "ab",
    ]  # fmt: skip
