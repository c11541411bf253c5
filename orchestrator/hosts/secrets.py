"""References to secrets (`env:`, `file:`, `cmd:`), and the masker that keeps their values out of every output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.errors import UsageError

REFERENCE = re.compile(r"^(env|file|cmd):(.+)$", re.DOTALL)

# What tokens of well-known services look like; such a value in a file is a leak already.
LOOKS_SECRET = re.compile(
    r"(?:\bsk-[A-Za-z0-9_-]{16,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b"
    r"|\bxox[abpr]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|\beyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{10,})"
)
_BEGINNINGS = ("sk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "AKIA", "xox", "-----BEGIN ", "eyJ")
SECRET_FLAG = re.compile(r"^--?(?:[a-z0-9-]*-)?(?:api-?key|token|password|secret)(?:=(?P<value>.+))?$", re.I)
SECRET_NAME = re.compile(r"(?:api_?key|token|passw(?:or)?d|secret|credential)", re.I)
SECRET_VARIABLE = re.compile(r"(?:^|_)(?:API_?KEY|TOKEN|PASSWORD|SECRET)$", re.I)
MASK = "[secret]"
SHORTEST, SHORTEST_LINE = 4, 12
Hide = Callable[..., None]  # is told values that no output may show


def is_reference(value: str) -> bool:
    return REFERENCE.match(value) is not None


def looks_secret(value: str) -> bool:
    """True for a literal that has the form of a well-known token or private key."""
    return not is_reference(value) and LOOKS_SECRET.search(value) is not None


def secret_words(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """What a service was given in the open: `--api-key VALUE`, `--hf-token=VALUE`, HF_TOKEN=VALUE and their like.

    A variable in such a place is no secret.
    """
    found = [value for name, value in env.items() if SECRET_VARIABLE.search(name)]
    for here, following in zip(argv, (*argv, "")[1:], strict=False):
        match = SECRET_FLAG.match(here)
        if match:
            found.append(match.group("value") or ("" if following.startswith("--") else following))
    return [value for value in found if value and not value.startswith("$")]


def resolve(reference: str, *, what: str) -> str:
    """The value behind a reference. `what` names it in errors (for example `hosts.pro6000.secrets.api_key`)."""
    match = REFERENCE.match(reference)
    if match is None:
        raise UsageError(f"{what} must be a reference like env:NAME, file:PATH or cmd:COMMAND, not a value.")
    kind, rest = match.group(1), match.group(2).strip()
    if kind == "env":
        value = os.environ.get(rest)
        if not value:
            raise UsageError(f"{what} needs the environment variable {rest}, which is not set; export it first.")
        return value
    if kind == "file":
        try:
            return Path(rest).expanduser().read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"{what}: the file {rest} cannot be read ({error.strerror}).") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{what}: the file {rest} is not text in UTF-8.") from error
    return _from_command(rest, what)


def _from_command(command: str, what: str) -> str:
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:  # ValueError: also what is not text
        raise UsageError(f"{what}: the command that gives it did not run ({type(error).__name__}).") from error
    if done.returncode != 0 or not done.stdout.strip():
        raise UsageError(f"{what}: the command that gives it ended with exit code {done.returncode} and no value.")
    return done.stdout.strip()


def known_values(node: object) -> Iterator[str]:
    """The values behind every env: and file: reference in a configuration; what cannot be read is left out.

    A command is not run only to learn what to hide.
    """
    if isinstance(node, str):
        if node.startswith(("env:", "file:")):
            with contextlib.suppress(UsageError):
                yield resolve(node, what="a secret")
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from known_values(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from known_values(value)


class Masker:
    """Replaces every known secret value, and anything that looks like one, in text that leaves the program."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        self.add(*values)

    def add(self, *values: str) -> None:
        """Remember values to hide; very short ones are ignored, since masking them would garble every line."""
        for value in values:
            if len(value) >= SHORTEST:
                self._values.update(_forms(value))

    def mask(self, text: str) -> str:
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        # The search for patterns takes a second for two million characters, that for their beginnings next to nothing.
        return LOOKS_SECRET.sub(MASK, text) if any(part in text for part in _BEGINNINGS) else text

    __call__ = mask


def _forms(value: str) -> Iterator[str]:
    """The value itself, as it stands in JSON texts, and its lines, since logs are read line by line."""
    yield value
    yield from (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    yield from (line for line in value.splitlines() if len(line) >= SHORTEST_LINE)
