"""Options over the versions and the translation of command lines."""

from __future__ import annotations

import itertools
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inspecting import flags
from tasks.inspecting.flags import UnknownOption, options_of, split_options, translate, unknown_options, versions

CARD = (
    "--model-path /models/Qwen3.6-27B --speculative-algorithm DFLASH --speculative-draft-model-path /models/draft "
    "--speculative-num-draft-tokens 16 --tp-size 1 --mem-fraction-static 0.75 --mamba-scheduler-strategy extra_buffer "
    "--trust-remote-code"
)


@pytest.mark.parametrize(
    "version", ["0.5.11", "0.5.13.post1", "0.5.14", "0.5.16", "0.5.18", "0.5.20", "0.5.22", "0.5.23"]
)
def test_every_version_knows_the_options_of_a_dflash_service(version: str) -> None:
    names = "--model-path --port --host --speculative-algorithm --speculative-draft-model-path --mem-fraction-static --tp-size"
    known = options_of(version)
    assert [name for name in names.split() if name not in known] == []
    assert known["--trust-remote-code"].takes == "flag"
    assert known["--port"].takes == "value"


def test_a_published_command_line_gets_the_new_names() -> None:
    found = translate(shlex.split(CARD), "0.5.16", "0.5.23")
    assert [(s.option, s.kind, s.became) for s in found.changes] == [
        ("--mamba-scheduler-strategy", "renamed", "--mamba-radix-cache-strategy")
    ]
    words = list(found.argv)
    assert words[words.index("--mamba-radix-cache-strategy") + 1] == "extra_buffer"
    assert "--mamba-scheduler-strategy" not in words


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--speculative-dflash-draft-window-size 2048", "--speculative-draft-window-size 2048"),
        ("--speculative-dflash-draft-window-size=2048", "--speculative-draft-window-size=2048"),
        ("--cuda-graph-max-bs 32", "--cuda-graph-max-bs-decode 32"),
        ("--cuda-graph-bs 1 2 4 --port 1", "--cuda-graph-bs-decode 1 2 4 --port 1"),
        ("--disable-cuda-graph", "--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled"),
        ("--enforce-piecewise-cuda-graph", "--cuda-graph-backend-prefill=tc_piecewise"),
        ("--stream-output", "--incremental-streaming-output"),
        ("--nsa-prefill-backend fa3", "--dsa-prefill-backend fa3"),
        ("--collect-tokens-histogram --port 1", "--port 1"),
        ("--tp 2", "--tp-size 2"),  # shortened, and unique
    ],
)
def test_renamed_options(old: str, new: str) -> None:
    assert list(translate(shlex.split(old), "0.5.18", "0.5.23").argv) == shlex.split(new)


def test_an_option_without_successor_stops_with_a_sentence() -> None:
    with pytest.raises(
        UnknownOption, match=r"sglang 0\.5\.23 has no option --torchao-config and none that replaces it"
    ):
        translate(["--torchao-config", "int8wo"], "0.5.16", "0.5.23")


@pytest.mark.parametrize("version", ["0.5.18", "0.5.19", "0.5.23"])
def test_a_sentence_about_the_option_itself_is_no_successor(version: str) -> None:
    found = translate(["--enable-expert-distribution-metrics", "--port", "1"], "0.5.14", version)
    assert found.argv == ("--port", "1")
    assert [step.kind for step in found.steps] == ["dropped", "kept"]


def test_a_new_option_stops_on_the_way_back() -> None:
    with pytest.raises(UnknownOption, match=r"sglang 0\.5\.11 has no option --speculative-dspark-block-size"):
        translate(["--speculative-dspark-block-size", "8"], "0.5.23", "0.5.11")


def test_a_renamed_option_gets_its_old_name_back() -> None:
    argv = translate(["--mamba-radix-cache-strategy", "no_buffer"], "0.5.23", "0.5.14").argv
    assert argv == ("--mamba-radix-cache-strategy", "no_buffer")


def test_unknown_options_of_a_service_are_named_with_the_new_name() -> None:
    argv = ["--mamba-scheduler-strategy", "auto", "--disable-cuda-graph", "--port", "1", "--nonsense"]
    found = {s.option: (s.kind, s.became) for s in unknown_options(argv, "0.5.23")}
    assert found["--mamba-scheduler-strategy"] == ("unknown", "--mamba-radix-cache-strategy")
    assert found["--disable-cuda-graph"][0] == "deprecated"
    assert found["--nonsense"] == ("unknown", "")
    assert "--port" not in found


def test_shortened_options_are_understood_while_unique() -> None:
    known = options_of("0.5.23")
    assert flags.resolve_name("--speculative-algo", known) == "--speculative-algorithm"
    assert flags.resolve_name("--cuda-graph-max-bs", known) == "--cuda-graph-max-bs"  # two options begin so


def test_versions_between_and_beyond_the_table() -> None:
    assert flags.nearest_version("0.5.16.post2") == "0.5.16"
    assert flags.nearest_version("0.6.0+cu130") == "0.5.23"
    assert flags.nearest_version("0.4.9") == "0.5.11"
    assert flags.version_key("0.5.13") < flags.version_key("0.5.13.post1") < flags.version_key("0.5.14")


words = st.text(alphabet="abcxyz0123456789./_", min_size=1, max_size=8)


@st.composite
def command_lines(draw: st.DrawFn, version: str) -> list[str]:
    known = options_of(version)
    argv: list[str] = []
    for name in draw(st.lists(st.sampled_from(sorted(known)), max_size=8)):
        takes = known[name].takes
        if takes in ("flag", "none"):
            argv.append(name)
        elif takes == "list":
            argv += [name, *draw(st.lists(words, min_size=1, max_size=3))]
        elif draw(st.booleans()):
            argv.append(f"{name}={draw(words)}")
        else:
            argv += [name, draw(words)]
    return argv


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(versions()), st.sampled_from(versions()))
def test_a_translation_parses_in_the_new_version_and_loses_no_value(data: st.DataObject, old: str, new: str) -> None:
    argv = data.draw(command_lines(old))
    try:
        found = translate(argv, old, new)
    except UnknownOption as error:
        assert str(error).startswith(f"sglang {new} ")
        return
    known = options_of(new)
    names = [name for name, _, _ in split_options(found.argv, known) if name]
    assert all(name in known and not known[name].deprecated for name in names)
    named = [values for name, values, _ in split_options(argv, options_of(old)) if name]
    carried = [v for values, step in zip(named, found.steps, strict=True) if carries(step) for v in values]
    assert [
        v for name, values, _ in split_options(found.argv, known) for v in values if (name, v) not in constants(found)
    ] == carried


def carries(step: flags.Step) -> bool:
    return step.kind != "dropped" and "=" not in step.became


def constants(found: flags.Translation) -> set[tuple[str, str]]:
    """Options that were written with a fixed value (`--old` became `--new=value`)."""
    return {tuple(word.split("=", 1)) for step in found.steps for word in step.became.split() if "=" in word}  # type: ignore[misc]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(versions()))
def test_the_same_version_changes_nothing_that_is_current(data: st.DataObject, version: str) -> None:
    known = options_of(version)
    argv = data.draw(command_lines(version))
    if all(not known[name].deprecated for name, _, _ in split_options(argv, known) if name in known):
        assert translate(argv, version, version).argv == tuple(argv)


@given(st.lists(st.text(max_size=12), max_size=10))
def test_splitting_any_words_never_loses_one(argv: list[str]) -> None:
    known = options_of("0.5.23")
    joined = split_options(argv, known)
    count = sum(len(values) + (1 if name and not equals else 0) for name, values, equals in joined)
    assert count == len(argv)


def test_every_option_alone_becomes_a_current_one_or_stops() -> None:
    wrong = []
    options = {version: options_of(version) for version in versions()}
    for (old, source), (new, target) in itertools.product(options.items(), options.items()):
        for name, option in source.items():
            if name in target and not target[name].deprecated:
                continue
            argv = [name] if option.takes in ("flag", "none") else [name, "x"]
            try:
                found = translate(argv, old, new, source=source, target=target)
            except UnknownOption:
                continue
            names = [word for word, _, _ in split_options(found.argv, target) if word]
            if not all(word in target and not target[word].deprecated for word in names):
                wrong.append((old, new, name, found.argv))
    assert wrong == []
