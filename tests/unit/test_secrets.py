"""What hides secrets: the value as it is, inside a JSON text, and spread over the lines of a log."""

from __future__ import annotations

import json

import pytest

from orchestrator.hosts.secrets import MASK, Masker

KEY = 'first line of a key\nsecond line, with "quotes" and \\\nüber die dritte\nend'


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_value_is_hidden_in_a_json_text_too(ascii_only: bool) -> None:
    document = {"env": {"KEY": KEY}, "other": "stays"}
    shown = Masker([KEY]).mask(json.dumps(document, ensure_ascii=ascii_only))
    assert json.loads(shown) == {"env": {"KEY": MASK}, "other": "stays"}


def test_a_value_of_several_lines_is_hidden_line_by_line() -> None:
    mask = Masker([KEY]).mask
    assert mask(f"key: {KEY}.") == f"key: {MASK}."
    assert [mask(f"| {line}") for line in KEY.splitlines()] == [f"| {MASK}"] * 3 + ["| end"]


def test_what_is_too_short_to_be_told_from_other_text_stays() -> None:
    assert (
        Masker(["abc", "a\nbc\nd"]).mask("abc on one line, a and bc on others") == "abc on one line, a and bc on others"
    )
