"""Prompt sets: what is read, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.bench.prompts import WARM_UP, Prompt, load_prompt_sets, load_prompts, native_prompt, set_hash
from orchestrator.errors import UsageError
from orchestrator.openai.client import Client
from tests.bench.stub_server import running_stub

GOOD = """{"id": "a", "category": "code", "prompt": "def f():"}

{"id": "b", "category": "chat", "messages": [{"role": "user", "content": "Hi"}]}
{"id": "c", "input_ids": [1, 2]}
"""


def test_three_kinds_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(GOOD)
    prompts = load_prompts(path)
    assert [(p.id, p.category) for p in prompts] == [("a", "code"), ("b", "chat"), ("c", "default")]
    with running_stub() as stub, Client(stub.url) as client:
        assert [native_prompt(client, p) for p in prompts] == ["def f():", [72, 105], [1, 2]]
    assert load_prompts(path, limit=1) == prompts[:1]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "no prompt"),
        ("{", "line 1"),
        ('{"id": "a", "prompt": "x"}\n[1]', "line 2"),
        ('{"prompt": "x"}', "no id"),
        ('{"id": "a"}', "exactly one"),
        ('{"id": "a", "prompt": "x", "input_ids": [1]}', "exactly one"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "twice"),
    ],
)
def test_bad_sets_are_refused(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=word):
        load_prompts(path)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load_prompts(tmp_path / "none.jsonl")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="can't be read"):
        load_prompts(tmp_path / "binary.txt")


def test_text_files_and_dealing_out_in_turn(tmp_path: Path) -> None:
    for name, lines in (("one.txt", "a\nb\n"), ("two.txt", "c\n")):
        (tmp_path / name).write_text(lines)
    dealt = load_prompt_sets([tmp_path / "one.txt", tmp_path / "two.txt"])
    assert [p.text for p in dealt] == ["a", "c", "b"]


def test_hashes_follow_content_not_ids() -> None:
    assert Prompt("a", text="x").content_hash == Prompt("b", text="x").content_hash
    assert Prompt("a", text="x").content_hash != Prompt("a", text="y").content_hash
    assert set_hash(WARM_UP) != set_hash(WARM_UP[::-1])


def test_a_prompt_of_every_kind_can_be_opened_with_words_of_its_own() -> None:
    words = ({"role": "user", "content": "Hi"},)
    parts = ({"role": "user", "content": [{"type": "image_url"}]},)
    opening = Prompt("a", text="Hi").opened_with("(1)")
    assert opening.text == "(1)\nHi"
    assert opening.content_hash == Prompt("a", text="(1)\nHi").content_hash
    assert opening.own_hash == opening.opened_with("(2)").own_hash == Prompt("a", text="Hi").content_hash
    opened = [Prompt("a", messages=one).opened_with("(1)").messages for one in (words, parts)]
    assert opened[0] == ({"role": "user", "content": "(1)\nHi"},)
    assert opened[1] == ({"role": "user", "content": [{"type": "text", "text": "(1)"}, {"type": "image_url"}]},)
    ids = [Prompt("a", input_ids=tuple(range(500, 600))).opened_with(tag).input_ids or () for tag in ("(1)", "(2)")]
    assert ids[0][8:] == ids[1][8:] == tuple(range(500, 600))
    assert ids[0][:8] != ids[1][:8]
    assert set(ids[0]) == set(range(500, 600))
