"""Runs the probe script on a host and reads files there, in one command each."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import HostError
from orchestrator.transport.base import CommandResult, Transport
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
    def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout_s: float | None = 60.0) -> CommandResult:
        """As Transport.run."""
        ...


@dataclass(frozen=True)
class AsRoot:
    """The same host, each command through sudo: for processes and files of other users."""

    transport: Transport

    @property
    def host(self) -> str:
        return self.transport.host

    def run(self, argv: Sequence[str], *, stdin: bytes | None = None, timeout_s: float | None = 60.0) -> CommandResult:
        return self.transport.run(argv, stdin=stdin, timeout_s=timeout_s, sudo=True)


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


def host_facts(transport: Runs, options: Mapping[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
    """The raw JSON of the probe (see host_side/main.py); raises ProbeFailed with one sentence."""
    answer = _call(transport, "probe", options, timeout_s)
    if not isinstance(answer, dict) or "processes" not in answer:
        raise ProbeFailed(
            f"{transport.host}: the probe gave no facts; run `orchestrate --debug inspect` to see its output"
        )
    return answer


def read_files(
    transport: Runs,
    root: str,
    files: Sequence[str] = (),
    globs: Sequence[str] = (),
    *,
    listing: bool = False,
    model: bool = False,
    repository: str = "",
    hubs: Sequence[str] = (),
    timeout_s: float = 30.0,
) -> RemoteFiles:
    """Texts of files (each up to 2 MiB) below root on the host; names that are not there end in `missing`.

    Where root is no folder, `repository` (owner/name) is looked for in the download caches `hubs`.
    """
    options = {"root": root, "files": list(files), "globs": list(globs), "listing": listing, "model": model}
    options.update(repository=repository, hubs=list(hubs))
    answer = _call(transport, "files", options, timeout_s)
    packed = json.loads(zlib.decompress(base64.b64decode(answer["packed"])))
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


def _call(transport: Runs, mode: str, options: Mapping[str, Any], timeout_s: float) -> Any:
    result: CommandResult | None = None
    for python in INTERPRETERS:
        argv = [python, PYTHON_FLAGS, "-", mode, json.dumps(options)]
        result = transport.run(argv, stdin=script(), timeout_s=timeout_s)
        if result.exit_code not in (126, 127):
            break
    assert result is not None
    if result.exit_code in (126, 127):
        raise ProbeFailed(f"{transport.host} has no python3, which inspect needs; install it and run again")
    if not result.ok:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProbeFailed(f"{transport.host}: the probe ended with exit code {result.exit_code} ({last})")
    try:
        return json.loads(result.stdout[result.stdout.index("{") :])
    except ValueError:
        raise ProbeFailed(
            f"{transport.host}: the probe's answer is no JSON; a login script may print to stdout"
        ) from None
