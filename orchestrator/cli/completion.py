"""`orchestrate --install-completion`: Click's completion script where the shell looks for it."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from orchestrator.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
DETECT = "detect"
PROGRAM = "orchestrate"
ZSH_LINE = "fpath+=(~/.zfunc); autoload -Uz compinit && compinit  # completion of orchestrate\n"


def install(command: click.Command, shell: str) -> None:
    """Write the completion script of `command` for a shell, and say what to do next; a second call changes nothing."""
    shell = _own_shell() if shell == DETECT else shell
    target = _target(shell)
    try:
        changed = [path for path in (_write(target, _script(shell, command)), _zshrc(shell)) if path]
    except OSError as error:
        raise UsageError(f"{error.filename or target} cannot be written ({error.strerror}).") from error
    click.echo(f"{shell}: wrote {', '.join(map(str, changed))}" if changed else f"{shell}: {target} is up to date")
    click.echo(_next(shell, target))


def _own_shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise UsageError(f"$SHELL is {shell or 'not set'}; write --install-completion with one of {', '.join(SHELLS)}.")
    return shell


def _target(shell: str) -> Path:
    if shell == "bash":
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
        return data / "bash-completion/completions" / PROGRAM
    if shell == "zsh":
        return Path.home() / ".zfunc" / f"_{PROGRAM}"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "fish/completions" / f"{PROGRAM}.fish"


def _script(shell: str, command: click.Command) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()


def _write(path: Path, text: str) -> Path | None:
    """Writes the file unless it says so already; the path when it did."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _zshrc(shell: str) -> Path | None:
    """zsh has no folder of its own for a user's completions: one line in .zshrc names ours."""
    if shell != "zsh":
        return None
    path = Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    if ZSH_LINE in before:
        return None
    return _write(path, before + ("\n" if before and not before.endswith("\n") else "") + ZSH_LINE)


def _next(shell: str, target: Path) -> str:
    if shell == "bash":
        return f"Open a new shell (without the package bash-completion, add `. {target}` to ~/.bashrc)."
    return "Open a new shell."
