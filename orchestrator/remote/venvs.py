"""Python environments on a host: which one a running process really imports a package from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.errors import OrchestrateError
from orchestrator.remote.script import run_script
from orchestrator.transport.base import Transport

EnvKind = Literal["venv", "uv", "conda", "system"]
PackageKind = Literal["site-packages", "editable", "source", "user-site", "other-environment", "missing"]


@dataclass(frozen=True)
class Environment:
    """A Python environment as a process uses it. package_path is the folder of the package that it imports.

    mapped: package folders whose native libraries the process has in memory (the evidence); empty without a process.
    packages: digest of what is installed; it changes with every install, upgrade or removal.
    """

    python: str
    prefix: str
    base_prefix: str
    python_version: str
    kind: EnvKind
    site_packages: str
    package_path: str
    package_version: str | None
    package_kind: PackageKind
    mapped: tuple[str, ...]
    packages: str = ""


def environment_of_process(
    transport: Transport, pid: int, package: str = "sglang", *, sudo: bool = False
) -> Environment:
    """The environment that process `pid` imports `package` from; never a guess from what lies around on the disk."""
    answer = run_script(transport, "envfacts", {"pid": pid, "package": package}, sudo=sudo)
    if answer["found"] is None:
        tried = ", ".join(f"{one['python']} ({one['origin'] or 'no ' + package})" for one in answer["tried"]) or "none"
        raise OrchestrateError(
            f"host {transport.host!r}: no interpreter of process {pid} imports {package} (tried: {tried}); start the "
            "service with the Python of its own environment."
        )
    return _environment(answer["found"])


def environment_of_python(transport: Transport, python: str, package: str = "sglang") -> Environment | None:
    """The environment of an interpreter; None when it does not have the package."""
    answer = run_script(transport, "envfacts", {"python": python, "package": package})
    return _environment(answer["found"]) if answer["found"] else None


def _environment(facts: dict[str, Any]) -> Environment:
    origin = str(facts["origin"])
    return Environment(
        python=facts["python"],
        prefix=facts["prefix"],
        base_prefix=facts["base_prefix"],
        python_version=".".join(str(part) for part in facts["version_info"]),
        kind=facts["kind"],
        site_packages=facts["purelib"],
        package_path=origin.rsplit("/", 1)[0] if origin.endswith(".py") else origin,
        package_version=facts["version"],
        package_kind=facts["package_kind"],
        mapped=tuple(facts["mapped"]),
        packages=facts["packages"],
    )
