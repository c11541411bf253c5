"""The offline baselines' own code on a host: one archive below the root, run with the Python of the service."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import posixpath
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.hosts.session import HostSession
from orchestrator.release import wheels

PACKAGE = "baselines"
EPOCH = (1980, 1, 1, 0, 0, 0)
BAD_INPUT = 2


@functools.cache
def archive() -> bytes:
    """The package as a zip that Python imports from; equal sources give equal bytes."""
    folder = wheels.engine_folder() / PACKAGE
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for path in sorted(folder.glob("*.py")):
            info = zipfile.ZipInfo(f"{PACKAGE}/{path.name}", EPOCH)
            info.external_attr = 0o644 << 16
            target.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tools_folder(session: HostSession) -> str:
    """Where tools lie on the host; made when missing."""
    folder = posixpath.join(session.root, "tools")
    session.transport.run(["mkdir", "-p", folder], sudo=session.privileged, check=True)
    return folder


def send_baselines(session: HostSession) -> str:
    """Path of the archive on the host, uploaded unless it is there already; its name holds its hash."""
    content = archive()
    path = posixpath.join(tools_folder(session), f"{PACKAGE}-{hashlib.sha256(content).hexdigest()[:16]}.zip")
    if not session.transport.run(["test", "-f", path], sudo=session.privileged).ok:
        session.transport.put_bytes(content, path, sudo=session.privileged)
    return path


def command(python: str, *arguments: str) -> list[str]:
    """The command line of the package; PYTHONPATH must name the archive."""
    return [python, "-m", PACKAGE, *arguments]


def run_baselines(session: HostSession, python: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one short command of the package on the host and return its JSON document; UsageError for bad input."""
    env = {"PYTHONPATH": send_baselines(session)}
    done = session.transport.run(
        command(python, *arguments, "--json"), env=env, cwd="/", sudo=session.privileged, timeout_s=600
    )
    return read_answer(f"host {session.name!r}", done.exit_code, done.stdout, done.stderr)


def run_here(arguments: Sequence[str], fine: Sequence[int] = (0,)) -> dict[str, Any]:
    """The same on this machine, for commands that need no model library; exit codes in `fine` give a document."""
    env = {**os.environ, "PYTHONPATH": str(wheels.engine_folder()), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command(sys.executable, *arguments, "--json"), capture_output=True, text=True, env=env, check=False
    )
    return read_answer("this machine", done.returncode, done.stdout, done.stderr, fine)


def read_answer(where: str, code: int, stdout: str, stderr: str, fine: Sequence[int] = (0,)) -> dict[str, Any]:
    """The JSON document that a command of the package printed; its own sentence as an error otherwise."""
    lines = stdout.strip().splitlines()
    try:
        document: Mapping[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        document = {}
    if code in fine and document:
        return dict(document)
    said = str(document.get("error") or (stderr.strip().splitlines() or [f"exit code {code} and no message"])[-1])
    if code == BAD_INPUT:
        raise UsageError(said)
    raise OrchestrateError(f"{where}: the offline baseline's tool failed ({said}); run again with --debug for its log.")
