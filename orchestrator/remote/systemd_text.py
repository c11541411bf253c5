"""systemd's own way of writing commands and values, and the unit files rendered from templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from orchestrator.errors import OrchestrateError

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("orchestrator.remote", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)
_PLAIN = re.compile(r"^[A-Za-z0-9_@+,./:=-]+$")
_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def render(template: str, **values: Any) -> str:
    """A unit file; a value that the template needs and does not get is an error, never an empty line."""
    return _TEMPLATES.get_template(template).render(**values)


def command(argv: Sequence[str], filled_in: Sequence[str] = ()) -> str:
    """argv as an ExecStart line that systemd turns back into exactly the same words.

    filled_in: variables whose ${NAME} (or a word that is $NAME) systemd is to replace by the value that it knows.
    """
    return " ".join([_word(argv[0], dollar=False), *(_argument(word, filled_in) for word in argv[1:])])


def assignments(env: Mapping[str, str]) -> list[str]:
    """Values of Environment= lines, one variable each."""
    return [_word(f"{name}={value}", dollar=False, always=True) for name, value in env.items()]


def environment_file(env: Mapping[str, str]) -> str:
    """The content of an EnvironmentFile. Double quotes keep everything but backslash, quote, dollar and backtick."""
    lines = []
    for name, value in env.items():
        if "\0" in value:
            raise OrchestrateError(f"the value of {name} holds a NUL character, which no environment can carry.")
        escaped = re.sub(r'([\\"$`])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"')
    return "\n".join(lines) + "\n"


def expanded(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """What systemd executes for argv: `$$` is a dollar, `${X}` a value, a lone `$X` its words."""
    words: list[str] = []
    for word in argv:
        alone = re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", word)
        if alone and alone.group(1) in env:
            words += env[alone.group(1)].split()
            continue
        words.append(_VARIABLE.sub(lambda match: _value(match, env), word))
    return tuple(words)


def unknown(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables in argv, as systemd holds it, whose values are not in env."""
    names: dict[str, None] = {}
    for word in argv[1:]:
        for match in _VARIABLE.finditer(word):
            name = match.group(1) or (match.group(2) if match.group(0) == word else None)
            if name and name not in env:
                names[name] = None
    return tuple(names)


def _argument(word: str, filled_in: Sequence[str]) -> str:
    written = _word(word, dollar=True)
    for name in filled_in:
        # Quotes would keep systemd from splitting the value of a lone $NAME into words.
        written = f"${name}" if word == f"${name}" else written.replace(f"$${{{name}}}", f"${{{name}}}")
    return written


def _value(match: re.Match[str], env: Mapping[str, str]) -> str:
    name = match.group(1)
    if match.group(0) == "$$":
        return "$"
    # Inside a word systemd replaces only the form with braces.
    return env.get(name, match.group(0)) if name else match.group(0)


def _word(word: str, *, dollar: bool, always: bool = False) -> str:
    if "\0" in word:
        raise OrchestrateError("a unit file cannot hold a NUL character.")
    text = word.replace("%", "%%")
    if dollar:
        text = text.replace("$", "$$")
    if text and not always and _PLAIN.match(text):
        return text
    escaped = "".join(_ESCAPES.get(char, char if char.isprintable() else _hex(char)) for char in text)
    return f'"{escaped}"'


def _hex(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
