"""Removes every trace of orchestrate from a host; the service goes on as it was found."""

from __future__ import annotations

import posixpath
from pathlib import Path

from orchestrator.hosts import lock
from orchestrator.hosts.guard import held_for, leased_for
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.systemd_trigger import SystemdTrigger
from orchestrator.remote.longwork import WORK_UNITS
from orchestrator.remote.processes import processes
from orchestrator.remote.systemd_driver import SystemdDriver
from orchestrator.store.store import Store
from orchestrator.transport.embedded import embedded_folder, remove_embedded

OWN = ("releases", "deadman", "rejoin", "env", "work", "tools", "current", "known-good.json")
REMOVE = 'cd "$1" && shift && rm -rf -- "$@"'


def clean_host(config: HostConfig, state_dir: Path, store: Store) -> list[str]:
    """Returns what was removed, in words; [] when nothing of ours was there. LockedError while a run works there."""
    if config.transport == "embedded":
        if not embedded_folder(state_dir, config.name).exists():
            return []
        with leased_for(store, config.name):
            return remove_embedded(state_dir, config.name)
    with open_session(config, state_dir) as session:
        releases = session.releases
        if not releases.sh('test ! -d "$1" || echo yes', session.root):  # where there is no root, nobody holds a lock
            return _clean(session)
        with held_for(store, session, "clean"):
            done = _clean(session)
        lock.forget(releases)  # unless somebody else began to work there at this moment
        releases.sh('rmdir "$1" 2>/dev/null || true', session.root)
        return done


def _clean(session: HostSession) -> list[str]:
    """Drop-ins go first, and units are restarted without them, before the releases that they name are deleted."""
    done: list[str] = []
    for replica in session.replicas():
        done += _undecorate(replica) + _without_side_engines(replica)  # what stands in answers until the unit does
    own = [*OWN, *(name for one in session.replicas() if one.number for name in _own_of(one))]
    store = session.releases
    script = (
        'cd "$1" 2>/dev/null || exit 0; shift; for f in "$@"; do [ -e "$f" ] || [ -L "$f" ] && echo "$f"; done; exit 0'
    )
    present = store.sh(script, session.root, *own).split()
    if present:
        store.sh(REMOVE, session.root, *present, timeout_s=600)
        done += [f"{session.root}/{name}" for name in present]
    return done


def _without_side_engines(session: HostSession) -> list[str]:
    """What an operator who was lost left running: a canary, an engine under measurement, long work such as the oracle's."""
    if session.bridge is not None:
        session.bridge.end(drain_s=0.0)
    driver, stem = session.services, session.unit.removesuffix(".service").replace("@", "-")
    if not isinstance(driver, SystemdDriver):
        return []
    names = [*driver.installed(f"{stem}-"), *driver.installed(WORK_UNITS)]
    for name in names:
        driver.remove(name)
    return [f"the unit {name}" for name in names]


def _runs_from(session: HostSession, folder: str) -> bool:
    """Whether the unit's main process was started from a release."""
    pid = session.services.status(session.unit).main_pid
    found = processes(session.transport, [pid], sudo=session.privileged) if pid else []
    return any(word.startswith(folder + "/") for one in found for word in (*one.cmdline, one.exe))


def _own_of(replica: HostSession) -> tuple[str, ...]:
    layout = replica.releases.layout
    return tuple(posixpath.basename(path) for path in (layout.current, layout.deadman, layout.rejoin))


def _undecorate(session: HostSession) -> list[str]:
    """The unit as it was found, and no dead man's switch."""
    done: list[str] = []
    left = session.deadman.status()
    cut_off = left.state in ("armed", "firing")
    if cut_off:  # the previous release first: nobody else would start what a switch had stopped
        session.deadman.fire(left.token)
        done.append("the armed dead man's switch")
    definition = session.services.definition(session.unit)
    overridden = definition is not None and definition.overridden
    if overridden:
        session.services.clear_override(session.unit)
        done.append(f"the drop-in of {session.unit} (the service runs as it was found)")
    # An earlier attempt may have been cut off here: a process must not lose the files that it runs from.
    running = session.services.status(session.unit).running
    ours = running and (overridden or _runs_from(session, session.releases.layout.releases))
    if ours or (cut_off and not running):
        session.services.restart(session.unit)
    if isinstance(session.deadman.trigger, SystemdTrigger):
        session.deadman.trigger.stop()
    return done
