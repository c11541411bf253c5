"""Which wheels a host lacks for given requirements, resolved for that host's Python on the operator's machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.transport.base import Transport

# Run with the environment's own interpreter, which needs no pip for it.
FACTS = (
    "import json,platform,sys;from importlib import metadata as m;"
    "print(json.dumps({'python':'%d.%d'%sys.version_info[:2],'machine':platform.machine(),"
    "'glibc':platform.libc_ver()[1],'packages':{d.metadata['Name']:d.version for d in m.distributions()"
    " if d.metadata['Name']}}))"
)
OLDEST_GLIBC = 17  # manylinux2014; older tags have other names


@dataclass(frozen=True)
class Target:
    """The Python environment for which wheels are chosen. packages: what it has, by normalised name."""

    python: str
    machine: str
    glibc: str
    packages: Mapping[str, str]

    @property
    def platforms(self) -> list[str]:
        """Tags of wheels that run there, newest first."""
        minor = int(self.glibc.split(".")[1]) if self.glibc.startswith("2.") else OLDEST_GLIBC
        tags = [f"manylinux_2_{number}_{self.machine}" for number in range(minor, OLDEST_GLIBC - 1, -1)]
        return [*tags, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]

    def described(self) -> dict[str, Any]:
        """For the bundle's index: for which hosts it is."""
        return {name: value for name, value in asdict(self).items() if name != "packages"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def target_of(transport: Transport, python: str, *, sudo: bool = False) -> Target:
    """What the environment of an interpreter on a host is and has."""
    done = transport.run([python, "-I", "-c", FACTS], sudo=sudo, check=True, timeout_s=120)
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    facts["packages"] = {normal(name): version for name, version in facts["packages"].items()}
    return Target(**facts)


def download_lacking(requirements: Sequence[str], target: Target, folder: Path) -> list[Path]:
    """Wheels in `folder` that the target needs besides what it has; source packages are refused.

    What it has is held at its version, so that nothing which the service runs on would be replaced.
    """
    with tempfile.TemporaryDirectory(prefix="orchestrate-lacking-") as scratch:
        held = Path(scratch) / "constraints.txt"
        # A version with a local label (torch 2.13.0+cu130) is in no registry: holding it would find nothing.
        lines = [f"{name}=={version}" for name, version in target.packages.items() if "+" not in version]
        held.write_text("\n".join(lines) + "\n")
        where = ["--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp"]
        where += [part for tag in target.platforms for part in ("--platform", tag)]
        report = Path(scratch) / "report.json"
        resolve = ["install", "--dry-run", "--ignore-installed", "--target", scratch, "--report", str(report)]
        _pip([*resolve, *where, "-c", str(held), *requirements])
        found = [row["metadata"] for row in json.loads(report.read_text())["install"]]
        lacking = [
            f"{row['name']}=={row['version']}" for row in found if not _has(target, normal(row["name"]), row["version"])
        ]
        if lacking:
            _pip(["download", "--no-deps", "--dest", str(folder), *where, *lacking])
    return sorted(folder.glob("*.whl"))


def _has(target: Target, name: str, version: str) -> bool:
    return target.packages.get(name, "").split("+")[0] == version.split("+")[0]


def _pip(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        last = (errors or done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OrchestrateError(
            f"pip could not gather the wheels ({last[:300]}); build the bundle where a registry answers."
        )
