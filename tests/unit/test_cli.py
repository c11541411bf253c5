"""The command line from outside: help, documents, exit codes, and what it costs to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.cli import main
from orchestrator.errors import ExitCode

HOSTS = """\
hosts:
  gpu: {address: 127.0.0.1, port: 9, user: ada, model: {target: /m, draft: /d}}
"""


def commands() -> Iterator[tuple[str, ...]]:
    """Every command and subcommand, as a person types it."""
    context = click.Context(main.cli)

    def below(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield (*path, name)
            if isinstance(command, click.Group):
                yield from below(command, (*path, name))

    yield ()
    yield from below(main.cli, ())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    return tmp_path


def one_document(text: str) -> dict[str, Any]:
    """The only document in a text."""
    found, end = json.JSONDecoder().raw_decode(text)
    assert text[end:].strip() == ""
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", list(commands()), ids=lambda path: " ".join(path) or "orchestrate")
def test_help_fits_80_columns(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run([*path, "--help"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(('orchestrate', *path))} ")
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_every_command_takes_the_common_options(capsys: pytest.CaptureFixture[str]) -> None:
    for path in commands():
        command: click.Command = main.cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name)  # type: ignore[assignment]
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--debug", "--json", "--state", "--hosts", "--no-color"} <= options, path


WRONG = {
    "unknown command": (["nope"], 2),
    "unknown option": (["status", "--nope"], 2),
    "missing argument": (["run"], 2),
    "missing choice": (["todo", "set", "x"], 2),
    "wrong choice": (["note", "add", "text", "--kind", "idea"], 2),
    "wrong number": (["history", "--limit", "0"], 2),
    "no run yet": (["status"], 2),
    "no such run": (["logs", "r1"], 2),
    "no such host": (["run", "inspect", "--host", "x"], 2),
    "no such graph": (["plan", "deploi"], 2),
    "wrong setting": (["run", "inspect", "--set", "x"], 2),
    "nobody to ask": (["run", "rollback"], 2),
    "not a plan": (["run", "rollback", "--plan", "hosts.yaml", "--yes"], 2),
    "wrong run id": (["run", "inspect", "--run-id", "../x"], 2),
    "two run ids": (["run", "inspect", "--run-id", "x", "--resume", "last"], 2),
    "unreachable": (["releases"], 3),
    "wrong store": (["history", "--state", "mysql://x"], 2),
    "no inventory": (["hosts", "list", "--hosts", "missing.yaml"], 2),
    "drift": (["roadmap", "--check"], 2),
}


@pytest.mark.parametrize(("argv", "code"), WRONG.values(), ids=WRONG)
def test_an_error_is_one_sentence_and_one_document(
    argv: list[str], code: int, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert main.run([*argv, "--json"]) == code
    shown = capsys.readouterr()
    document = one_document(shown.out)
    assert document == {"ok": False, "exit_code": code, "error": document["error"]}
    assert document["error"]
    assert "\n" not in document["error"]
    assert "Traceback" not in shown.err
    assert f"orchestrate: {document['error']}" in shown.err

    assert main.run(argv) == code
    assert capsys.readouterr().out == ""


def test_a_sentence_of_click_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["status", "--hots", "x"])
    assert capsys.readouterr().err == (
        "orchestrate: No such option '--hots'"
        " (did you mean one of: '--host', '--hosts'?); see `orchestrate status --help`.\n"
    )
    main.run([])
    error = capsys.readouterr().err
    assert error.startswith("Usage: orchestrate ")
    assert error.endswith("orchestrate: A command is missing; the list above says what there is.\n")


def test_a_screen_and_a_document_exclude_each_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "inspect", "--tui", "--json", "--hosts", str(home / "hosts.yaml")]) == ExitCode.USAGE
    assert "choose one of them" in one_document(capsys.readouterr().out)["error"]


def test_a_traceback_is_shown_only_with_debug(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.chdir(home)
    monkeypatch.setattr("orchestrator.cli.status.open_to_read", broken)
    assert main.run(["status"]) == ExitCode.FAILED_UNCHANGED
    assert capsys.readouterr().err == (
        "orchestrate: Unexpected RuntimeError: a bug (run again with --debug to see where).\n"
    )
    main.run(["status", "--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_nothing_heavy_is_imported_for_help() -> None:
    program = (
        "import sys\n"
        "from orchestrator.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'sqlalchemy', 'sqlmodel', 'alembic', 'textual', 'matplotlib', 'numpy', 'paramiko', 'pydantic', 'mcp'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert done.stdout.endswith("heavy: []\n")


def test_a_reader_that_goes_away_gets_no_traceback(home: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m orchestrator history --help | true; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False, cwd=home,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (done.returncode in (0, 1), done.stderr) == (True, "")  # 0 when the reader was slower to leave
