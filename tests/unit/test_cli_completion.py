"""`orchestrate --install-completion`: files where each shell looks, written once, and working in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main

FILES = {
    "bash": ".local/share/bash-completion/completions/orchestrate",
    "zsh": ".zfunc/_orchestrate",
    "fish": ".config/fish/completions/orchestrate.fish",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("shell", FILES)
def test_the_script_is_written_once(shell: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--install-completion", shell]) == 0
    assert "_ORCHESTRATE_COMPLETE" in (home / FILES[shell]).read_text()
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert main.run(["--install-completion", shell]) == 0
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()} == before
    assert "is up to date" in capsys.readouterr().out


def test_zshrc_keeps_what_it_had(home: Path) -> None:
    (home / ".zshrc").write_text("setopt autocd")
    main.run(["--install-completion", "zsh"])
    main.run(["--install-completion", "zsh"])
    lines = (home / ".zshrc").read_text().splitlines()
    assert lines[0] == "setopt autocd"
    assert [line.count(".zfunc") for line in lines[1:]] == [1]


def test_the_shell_in_use_is_taken_or_asked_for(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main.run(["--install-completion"]) == 0
    assert (home / FILES["fish"]).is_file()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main.run(["--install-completion"]) == 2
    assert "$SHELL is tcsh" in capsys.readouterr().err
    assert main.run(["--install-completion", "tcsh"]) == 2


def test_bash_completes_commands_and_options(home: Path) -> None:
    main.run(["--install-completion", "bash"])
    ask = (
        f"source {FILES['bash']}; COMP_WORDS=(orchestrate {{words}}); COMP_CWORD={{at}}; "
        "_orchestrate_completion orchestrate; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    program = home / "bin" / "orchestrate"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n')
    program.chmod(0o755)

    def completed(words: str, at: int) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", ask.format(words=words, at=at)], capture_output=True, text=True, check=True, cwd=home,
            env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}",
                 "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        return done.stdout.split()

    assert completed("hi", 1) == ["history"]
    assert completed("todo cl", 2) == ["claim"]
    assert "--resume" in completed("run demo --re", 3)
