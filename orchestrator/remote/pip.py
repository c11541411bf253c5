"""pip on a host: the operator's settings passed on, output streamed as progress, nothing secret in an argument."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.transport.base import Transport

Progress = Callable[[str, float | None, float | None], None]
WITH_CREDENTIALS = re.compile(r"://[^/\s]*@")
STEP = re.compile(r"^(Collecting|Downloading|Using cached|Processing|Building|Installing collected|Successfully)\b.*")


def operator_settings(*, same_machine: bool) -> dict[str, str]:
    """The PIP_* variables of this machine; on an embedded host also its pip configuration and cache."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if same_machine:
        configured = [Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf"]
        found = next((path for path in configured if path.is_file()), None)
        if found is not None:
            settings.setdefault("PIP_CONFIG_FILE", str(found))
        settings.setdefault("PIP_CACHE_DIR", os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")) + "/pip")
    return settings


def pip_install(
    transport: Transport,
    python: str,
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    progress: Progress,
    expected: int | None = None,
    timeout_s: float = 3600.0,
) -> None:
    """Run `pip install` in the environment of `python`; `expected` is the number of packages, for the progress bar."""
    seen: set[str] = set()
    secrets = [value for value in env.values() if WITH_CREDENTIALS.search(value)]

    def on_line(_stream: str, line: str) -> None:
        text = line.strip()
        if not STEP.match(text):
            return
        if text.startswith("Collecting") and expected:
            seen.add(text.split()[1])
            progress(text[:100], float(min(len(seen), expected)), float(expected))
        else:
            progress(text[:100], None, None)

    command = [python, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check", "--no-input"]
    transport.run([*command, *arguments], env=env, on_line=on_line, check=True, timeout_s=timeout_s, mask=secrets)
