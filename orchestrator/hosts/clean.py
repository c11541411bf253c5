"""Removes every trace of orchestrate from a host; the service goes on as it was found."""

from __future__ import annotations

from pathlib import Path

from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.systemd_trigger import SystemdTrigger
from orchestrator.remote.systemd_driver import SystemdDriver
from orchestrator.transport.embedded import embedded_folder, remove_embedded

OWN = ("releases", "deadman", "env", "current", "known-good.json", "lock.json", "lock.json.flock")


def clean_host(config: HostConfig, state_dir: Path) -> list[str]:
    """Returns what was removed, in words; [] when nothing of ours was there."""
    if config.transport == "embedded":
        return remove_embedded(state_dir, config.name) if embedded_folder(state_dir, config.name).exists() else []
    with open_session(config, state_dir) as session:
        return _clean(session)


def _clean(session: HostSession) -> list[str]:
    """The drop-in goes first, and the unit is restarted without it, before the release that it names is deleted."""
    done: list[str] = []
    definition = session.services.definition(session.unit)
    if definition is not None and definition.overridden:
        running = session.services.status(session.unit).running
        session.services.clear_override(session.unit)
        if running:
            session.services.restart(session.unit)
        done.append(f"the drop-in of {session.unit} (the service runs as it was found)")
    status = session.deadman.status()
    if status.state == "armed":
        session.deadman.disarm(status.token)
        done.append("the armed dead man's switch")
    if isinstance(session.services, SystemdDriver):
        SystemdTrigger(session.transport, session.services, session.unit).stop()
    store = session.releases
    script = (
        'cd "$1" 2>/dev/null || exit 0; shift; for f in "$@"; do [ -e "$f" ] || [ -L "$f" ] && echo "$f"; done; exit 0'
    )
    present = store.sh(script, session.root, *OWN).split()
    if present:
        store.sh('cd "$1" && shift && rm -rf -- "$@"', session.root, *present, timeout_s=600)
        store.sh('rmdir "$1" 2>/dev/null || true', session.root)
        done += [f"{session.root}/{name}" for name in present]
    return done
