"""The event splitter: any split of the bytes gives the same events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.openai import sse
from orchestrator.openai.sse import SseSplitter

DATA_LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1)
EVENTS = st.lists(st.lists(DATA_LINE, min_size=1, max_size=3), max_size=5)


def feed_all(chunks: list[bytes]) -> list[str]:
    splitter = SseSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)]


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({0, len(raw), *(p % (len(raw) + 1) for p in places)})
    return [raw[a:b] for a, b in pairwise(borders)]


@settings(deadline=None)
@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 10_000)), st.booleans())
def test_events_survive_any_split(events: list[list[str]], end: str, places: list[int], bom: bool) -> None:
    text = "".join(": note" + end + "".join(f"data: {line}{end}" for line in lines) + end for lines in events)
    raw = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    assert feed_all(cut(raw, places)) == ["\n".join(lines) for lines in events]


def test_single_bytes_inside_an_emoji() -> None:
    raw = "data: 🚀é\r\n\r\ndata: [DONE]\n\n".encode()
    assert feed_all([raw[i : i + 1] for i in range(len(raw))]) == ["🚀é", "[DONE]"]


def test_what_the_format_allows_besides_data() -> None:
    assert feed_all([b"event: x\nid: 1\nretry: 5\ndata:no space\ndata:  two\n\n"]) == ["no space\n two"]
    assert feed_all([b"event: nothing\n\n\n\n", b": only a comment\n\n"]) == []


def test_an_event_without_its_end_is_not_handed_out() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: half") == []
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\n") == ["half"]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    splitter = SseSplitter()
    splitter.feed(b"data: " + b"x" * 900)
    with pytest.raises(ValueError, match="a line of more than"):
        splitter.feed(b"x" * 100)
