"""Runs one of the host-side programs of `orchestrator.remote.scripts` and reads its JSON answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.transport.base import CommandFailed, OnLine, Transport


def source(name: str) -> bytes:
    """The text of a host-side program."""
    return resources.files("orchestrator.remote.scripts").joinpath(f"{name}.py").read_bytes()


def run_script(
    transport: Transport,
    name: str,
    arguments: Mapping[str, Any],
    *,
    sudo: bool = False,
    timeout_s: float | None = 120.0,
    python: str = "python3",
    on_line: OnLine | None = None,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Send the program on stdin (nothing is left on the host) and return the JSON of its last line.

    Raises OrchestrateError with the program's own sentence when it ends with a code other than 0.
    """
    done = transport.run(
        [python, "-I", "-", json.dumps(arguments)],
        stdin=source(name),
        sudo=sudo,
        timeout_s=timeout_s,
        on_line=on_line,
        env=env,
    )
    lines = done.stdout.strip().splitlines()
    if not done.ok:
        said = done.stderr.strip().splitlines()
        raise CommandFailed(
            f"host {transport.host!r}: {said[-1] if said else f'{name} ended with exit code {done.exit_code}'}", done
        )
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise OrchestrateError(
            f"host {transport.host!r}: {name} gave no JSON; check that its python3 is 3.8 or newer."
        ) from error
