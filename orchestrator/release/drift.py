"""What changed on a host behind orchestrate's back: unit texts, the live command, the engine's version."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from orchestrator.release.activate import Activation
from orchestrator.release.manifest import Manifest
from orchestrator.remote.venvs import environment_of_process


@dataclass(frozen=True)
class Drift:
    """One difference between what a release says and what the host has. `diff` is a unified diff or empty."""

    what: str
    detail: str
    diff: str = ""


def drift_of(activation: Activation, found: Manifest, live: Manifest) -> list[Drift]:
    """Differences of the unit from the release as found, and of the live service from the release that should serve.

    [] when all is as recorded. Nothing is changed or overwritten here.
    """
    definition = activation.services.definition(activation.unit)
    if definition is None:
        return [Drift("unit", f"{activation.unit} is gone")]
    ours = dict(activation.files_of(live))
    expected = {**found.texts, **ours}
    differences = [
        Drift("unit", f"{path} was changed by hand", _diff(path, expected.get(path, ""), text))
        for path, text in definition.texts.items()
        if text != expected.get(path)
    ]
    differences += [Drift("unit", f"{path} is gone") for path in expected if path not in definition.texts]
    status = activation.services.status(activation.unit)
    if status.running:
        store = activation.store
        now = environment_of_process(store.transport, status.main_pid, sudo=store.privileged)
        wanted = store.prefix(live)
        if now.prefix != wanted:
            differences.append(Drift("environment", f"the live process imports from {now.prefix}, not {wanted}"))
        if now.package_version != live.environment.package_version:
            versions = f"{live.environment.package_version} was recorded, {now.package_version} is imported"
            differences.append(Drift("engine", f"SGLang was changed on the host: {versions}"))
    else:
        differences.append(Drift("service", f"{activation.unit} is {status.active} {status.detail}".rstrip()))
    return differences


def _diff(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{path} (recorded)", f"{path} (now)", lineterm=""
    )
    return "\n".join(lines)
