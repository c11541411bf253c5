"""Runs the probe script on a host and reads files there, in one command each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import HostError
from orchestrator.transport.base import CommandResult, Transport
from tasks.inspecting import answers
from tasks.inspecting.host_side.base import KEY_VARIABLE
from tasks.inspecting.source import BundleTree

PYTHON_FLAGS = "-IBS"  # isolated, writes no byte code, runs no .pth of the host
INTERPRETERS = ("python3", "/usr/bin/python3", "/usr/local/bin/python3")


class ProbeFailed(HostError):
    """The host answered, but could not be looked at."""


PARTS = ("base", "imports", "processes", "machine", "models", "main")


@cache
def script() -> bytes:
    """The modules of host_side as one script: their imports of each other and repeated headers left out."""
    folder = Path(__file__).with_name("host_side")
    text = "\n".join((folder / f"{part}.py").read_text() for part in PARTS)
    text = re.sub(r"(?m)^from tasks\.inspecting\.host_side\.\w+ import (\([^)]*\)|.*)$", "", text)
    return ("from __future__ import annotations\n" + text.replace("from __future__ import annotations\n", "")).encode()


class Runs(Protocol):
    """What the probe needs of a Transport."""

    @property
    def host(self) -> str: ...
    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = 60.0,
    ) -> CommandResult:
        """As Transport.run."""
        ...


@dataclass(frozen=True)
class AsRoot:
    """The same host, each command through sudo: for processes and files of other users."""

    transport: Transport

    @property
    def host(self) -> str:
        return self.transport.host

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = 60.0,
    ) -> CommandResult:
        return self.transport.run(argv, env=env, stdin=stdin, timeout_s=timeout_s, sudo=True)


def reader(transport: Transport, facts: Mapping[str, Any]) -> Runs:
    """How files of this host are read: as root if the look needed root."""
    return AsRoot(transport) if facts.get("as_root") else transport


@dataclass(frozen=True)
class RemoteFiles:
    """Texts of files below one folder, what was missing, names and sizes directly in the folder, and for models
    {tensor: [dtype, shape]}, a tokenizer whose vocabulary is replaced by its hash, and the SHA-256 of small weights.
    """

    root: str
    exists: bool
    readable: bool
    texts: Mapping[str, str]
    missing: Sequence[str]
    listing: Sequence[tuple[str, int]]
    tensors: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] | None = None
    weights_sha256: str | None = None

    def tree(self) -> BundleTree:
        return BundleTree(self.root, self.texts)


def host_facts(
    transport: Runs, options: Mapping[str, Any], timeout_s: float = 30.0, key: str | None = None
) -> dict[str, Any]:
    """The raw JSON of the probe (see host_side/main.py); raises ProbeFailed with one sentence. key: of the service."""
    return _call(transport, "probe", options, answers.Facts, timeout_s, {KEY_VARIABLE: key} if key else {})


@dataclass(frozen=True)
class Ask:
    """What is wanted of one folder: files by name or pattern (each up to 2 MiB), names and sizes, a model's facts.

    Where root is no folder, `repository` (owner/name) is looked for in the download caches `hubs`.
    """

    root: str
    files: Sequence[str] = ()
    globs: Sequence[str] = ()
    listing: bool = False
    model: bool = False
    repository: str = ""
    hubs: Sequence[str] = ()


def read_files(transport: Runs, ask: Ask, timeout_s: float = 30.0) -> RemoteFiles:
    """The files of one folder; names that are not there end in `missing`."""
    return read_all(transport, {"": ask}, timeout_s)[""]


def read_all(transport: Runs, asks: Mapping[str, Ask], timeout_s: float = 30.0) -> dict[str, RemoteFiles]:
    """Several folders in one command, by the same names; no command when nothing is asked."""
    if not asks:
        return {}
    options = {"asks": {name: asdict(ask) for name, ask in asks.items()}}
    folders = _call(transport, "files", options, answers.Answers, timeout_s)["answers"]
    try:
        return {name: _remote_files(folders[name]) for name in asks}
    except (answers.Malformed, KeyError) as error:
        raise ProbeFailed(f"{transport.host}: the probe's answer is malformed ({error}); look at the host") from None


def read_stamps(transport: Runs, asks: Mapping[str, Ask], timeout_s: float = 30.0) -> dict[str, str]:
    """For each of the folders a hash that changes with what `read_all` would read there."""
    options = {"asks": {name: asdict(ask) for name, ask in asks.items()}}
    found: dict[str, str] = _call(transport, "stamps", options, answers.Stamps, timeout_s)["stamps"]
    return found


def _remote_files(answer: Mapping[str, Any]) -> RemoteFiles:
    packed = answers.unpacked(answer["packed"])
    return RemoteFiles(
        root=answer["root"],
        exists=answer["exists"],
        readable=answer["readable"],
        texts=packed["texts"],
        missing=answer["missing"],
        listing=[(name, size) for name, size in answer["listing"]],
        tensors=packed["tensors"],
        tokenizer=packed["tokenizer"],
        weights_sha256=packed["weights"],
    )


def _call(
    transport: Runs,
    mode: str,
    options: Mapping[str, Any],
    form: type[answers.Form],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    result: CommandResult | None = None
    for python in INTERPRETERS:
        argv = [python, PYTHON_FLAGS, "-", mode, json.dumps(options)]
        result = transport.run(argv, env=env, stdin=script(), timeout_s=timeout_s)
        if result.exit_code not in (126, 127):
            break
    assert result is not None
    if result.exit_code in (126, 127):
        raise ProbeFailed(f"{transport.host} has no python3, which inspect needs; install it and run again")
    if not result.ok:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProbeFailed(f"{transport.host}: the probe ended with exit code {result.exit_code} ({last})")
    # The answer is one line, the last one with an object: a login script may print before and a log-out script after it.
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    try:
        return answers.parsed(lines[-1] if lines else "", form)
    except answers.Malformed as error:
        raise ProbeFailed(f"{transport.host}: the probe's answer is malformed ({error}); look at the host") from None
