"""Pure derivations of a launch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.release.launch import Launch, flag_value, in_environment, with_flags

WORD = st.text("abc/=.", min_size=1, max_size=6).filter(lambda word: not word.startswith("--"))


def test_flags_are_set_replaced_and_removed_in_both_spellings() -> None:
    argv = ("python", "-m", "serve", "--a", "1", "2", "--b=3", "--keep", "x", "--c")
    assert with_flags(argv, {"--a": "9", "--new": None}, remove=("--b", "--c")) == (
        "python", "-m", "serve", "--keep", "x", "--a", "9", "--new",
    )  # fmt: skip


def test_flag_values_of_every_form() -> None:
    argv = ("serve", "--a", "1", "--b=2", "--c", "--a", "3")
    assert [flag_value(argv, flag) for flag in ("--a", "--b", "--c", "--d")] == ["3", "2", "", None]
    assert flag_value((), "--a") is None


@given(words=st.lists(WORD, max_size=5), value=WORD)
def test_setting_a_flag_can_be_read_back_and_repeated(words: list[str], value: str) -> None:
    once = with_flags(("program", *words), {"--flag": value})
    assert flag_value(once, "--flag") == value
    assert with_flags(once, {"--flag": value}) == once


def test_only_paths_of_the_environment_move() -> None:
    launch = Launch(
        argv=("/opt/venv/bin/python", "/opt/venv-other/x", "--path=/opt/venv/y"),
        env={"PYTHONPATH": "/opt/venv/lib:/srv/lib", "HOME": "/opt/venv"},
    )
    moved = in_environment(launch, "/opt/venv", "/r/venv")
    assert moved.argv == ("/r/venv/bin/python", "/opt/venv-other/x", "--path=/opt/venv/y")
    assert moved.env == {"PYTHONPATH": "/r/venv/lib:/srv/lib", "HOME": "/r/venv"}
