"""Make the environment in which the engine tests run, and print its interpreter.

It is provisioned exactly as an embedded host is (same pinned lists, same wheel), so that hosts of the tests can be
cloned from it in seconds. Test tools go into a folder of their own beside it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from orchestrator.hosts.first_use import cpu_host
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import open_session
from orchestrator.remote.provision_cpu import provision_environment
from orchestrator.transport.embedded import embedded_home, stop_embedded

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / ".cache" / "engine"
TOOLS = BASE / "tools"
HOST = HostConfig(name="base", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")
TEST_TOOLS = ("pytest", "hypothesis")


def engine_python() -> Path:
    return embedded_home(BASE, HOST.name) / "opt" / "sglang" / "venv" / "bin" / "python"


def make() -> Path:
    """Provision, or find what is there already."""
    BASE.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def progress(text: str, done: float | None, total: float | None) -> None:
        share = f" ({done:.0f}/{total:.0f})" if done and total else ""
        print(f"engine environment, {time.monotonic() - started:4.0f} s: {text[:90]}{share}", file=sys.stderr)

    with open_session(HOST, BASE) as session:
        provision_environment(cpu_host(session), BASE / "wheels", progress)
    stop_embedded(BASE, HOST.name)
    if not TOOLS.is_dir():
        pins = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
        wanted = [pin for pin in pins if pin.split("==")[0] in TEST_TOOLS]
        command = [
            str(engine_python()),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-warn-conflicts",
            "--target",
            str(TOOLS),
        ]
        subprocess.run([*command, *wanted], check=True)
    return engine_python()


if __name__ == "__main__":
    print(make())
