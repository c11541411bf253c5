"""The service as it was found becomes a release: a manifest, nothing copied."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.recent import Recent
from orchestrator.release.launch import Launch
from orchestrator.release.manifest import EnvironmentFacts, Manifest
from orchestrator.release.store import ReleaseStore
from orchestrator.remote.processes import ProcessFacts, listening_on, processes
from orchestrator.remote.services import Definition, ServiceDriver, ServiceStatus
from orchestrator.remote.venvs import environment_of_process

# Who else may own a process, by its cgroup scope or its program: such a service is not ours to switch.
FOREIGN = {
    "Docker": re.compile(r"docker-|docker-proxy|dockerd"),
    "Podman": re.compile(r"libpod-|conmon"),
    "Kubernetes": re.compile(r"kubepods|cri-containerd|crio-"),
}


def find_service(
    store: ReleaseStore,
    services: ServiceDriver,
    unit: str,
    port: int,
    *,
    run_id: str = "",
    keep: bool = True,
    recent: Recent | None = None,
) -> Manifest:
    """Describe the service that runs now as release `found-<hash>`; the same service gives the same id.

    recent: spares asking the same process with the same definition again within seconds.
    With `keep` its manifest is written to the host and made the current release; without, nothing is.
    Raises OrchestrateError when there is no such unit, it does not run, or something else owns the port.
    """
    definition = services.definition(unit)
    if definition is None:
        raise OrchestrateError(_unknown_unit(store, unit, port))
    if definition.overridden:
        return _recorded_original(store, unit, definition)
    status = _running(store, services, unit)

    def described() -> Manifest:
        manifest = _as_found(store, unit, definition, _process(store, unit, status.main_pid), run_id)
        return _kept(store, manifest) if keep else manifest

    asked = f"{unit} as pid {status.main_pid}, kept: {keep}, defined as {definition!r}"
    return (recent or Recent()).get(asked, described)


def _as_found(store: ReleaseStore, unit: str, definition: Definition, main: ProcessFacts, run_id: str) -> Manifest:
    host = store.transport.host
    environment = environment_of_process(store.transport, main.pid, sudo=store.privileged)
    if environment.package_kind == "missing":
        raise OrchestrateError(f"host {host!r}: the process of {unit} ({main.described}) does not import sglang.")
    launch = Launch.of(definition)
    facts = EnvironmentFacts(**{k: v for k, v in asdict(environment).items() if k in EnvironmentFacts.model_fields})
    identity = json.dumps([unit, launch.identity(), facts.model_dump()], sort_keys=True)
    manifest = Manifest(
        id=f"found-{hashlib.sha256(identity.encode()).hexdigest()[:12]}",
        kind="found",
        host=host,
        unit=unit,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=run_id,
        launch=launch,
        environment=facts,
        texts=dict(definition.texts),
    )
    return store.read(manifest.id) if store.exists(manifest.id) else manifest


def _kept(store: ReleaseStore, manifest: Manifest) -> Manifest:
    """Written to the host, unless it is there, and the current release from now on."""
    store.prepare()
    if not store.exists(manifest.id):
        store.write(manifest)
    if store.current() != manifest.id:
        store.point_current(manifest.id)
    return manifest


def ancestors(store: ReleaseStore, release: str | None) -> Iterator[Manifest]:
    """A release, what it was made from, and so on; ends early where something is not recorded any more."""
    seen: set[str] = set()
    while release and release not in seen:
        seen.add(release)
        try:
            manifest = store.read(release)
        except UsageError:
            return
        yield manifest
        release = manifest.source_release


def original_of(store: ReleaseStore, manifest: Manifest) -> Manifest:
    """The service as found that a release was made from; the release itself when that is not recorded any more."""
    return next((one for one in ancestors(store, manifest.id) if one.kind == "found"), manifest)


def _recorded_original(store: ReleaseStore, unit: str, definition: Definition) -> Manifest:
    """While a release of ours is live, the unit as found is what that release was built from."""
    for manifest in ancestors(store, definition.release):
        if manifest.kind == "found":
            return manifest
    raise OrchestrateError(
        f"host {store.transport.host!r}: {unit} has a drop-in of orchestrate whose release "
        f"({definition.release or '?'}) is "
        "not recorded here; remove the drop-in and restart the unit."
    )


def _running(store: ReleaseStore, services: ServiceDriver, unit: str) -> ServiceStatus:
    status = services.status(unit)
    if not status.running:
        raise OrchestrateError(
            f"host {store.transport.host!r}: {unit} is {status.active}, not running{_because(status.detail)}; "
            "start it and make sure that it answers before it is recorded."
        )
    return status


def _process(store: ReleaseStore, unit: str, pid: int) -> ProcessFacts:
    found = processes(store.transport, [pid], sudo=store.privileged)
    if not found:
        raise OrchestrateError(
            f"host {store.transport.host!r}: the main process of {unit} (pid {pid}) ended while it was looked at; see "
            "`orchestrate logs`."
        )
    return found[0]


def _because(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _unknown_unit(store: ReleaseStore, unit: str, port: int) -> str:
    where = f"host {store.transport.host!r}: there is no unit {unit}"
    for process in listening_on(store.transport, port, sudo=store.privileged):
        for owner, pattern in FOREIGN.items():
            if pattern.search(process.unit) or pattern.search(" ".join(process.cmdline)):
                return (
                    f"{where}, and port {port} is served by {owner} ({process.described}); orchestrate switches "
                    "systemd "
                    f"units only: move the service out of {owner}, or change the image there."
                )
        return f"{where}, but {process.described} serves port {port}; name its unit as service.unit in hosts.yaml."
    return f"{where} and nothing listens on port {port}; start the linear service first, or correct hosts.yaml."
