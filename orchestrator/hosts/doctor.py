"""Checks of the operator's own machine: each finding says how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.load import load_inventory
from orchestrator.store.failures import StoreNotReadyError
from orchestrator.store.store import open_store

GIB = 1 << 30
EMBEDDED_DISK_GIB = 6
EMBEDDED_MEMORY_GIB = 6


@dataclass(frozen=True)
class Check:
    """One finding. `fix` says what to do when it is not ok."""

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_checks(hosts_file: Path, store_url: str) -> list[Check]:
    """Every check, in the order in which they matter; a check never raises."""
    return [_safely(check) for check in _checks(hosts_file, store_url)]


def _safely(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        return Check(check.__name__.strip("_"), False, f"{type(error).__name__}: {error}", "report this with --debug")


def _checks(hosts_file: Path, store_url: str) -> Iterator[Callable[[], Check]]:
    home = hosts_file.resolve().parent
    yield python_version
    yield c_library
    for tool, why in (("git", "clones and tree hashes"), ("make", "`make run` and `make test`"), ("cc", "Triton")):
        yield lambda tool=tool, why=why: program(tool, why)  # type: ignore[misc]
    yield lambda: disk(home)
    yield memory
    yield loopback
    yield lambda: writable(home)
    yield lambda: inventory(hosts_file)
    yield lambda: store(store_url)


def python_version() -> Check:
    version = platform.python_version()
    ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check("python", ok, version, "use Python 3.11, 3.12 or 3.13")


def c_library() -> Check:
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    ok = name == "glibc" and numbers >= (2, 34)
    return Check("glibc", ok, f"{name or 'unknown'} {version}", "the engine's wheels need glibc 2.34 or newer")


def program(name: str, why: str) -> Check:
    candidates = ("cc", "gcc", "clang") if name == "cc" else (name,)
    found = next((path for path in map(shutil.which, candidates) if path), None)
    return Check(name, found is not None, found or "not found", f"install {name}: it is used for {why}")


def disk(home: Path) -> Check:
    free = shutil.disk_usage(home).free / GIB
    fix = f"free some space in {home}: the embedded host needs about {EMBEDDED_DISK_GIB} GiB"
    return Check("disk", free >= EMBEDDED_DISK_GIB, f"{free:.1f} GiB free", fix)


def memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    fix = f"two engines side by side on the embedded host need about {EMBEDDED_MEMORY_GIB} GiB"
    return Check("memory", total >= EMBEDDED_MEMORY_GIB, f"{total:.1f} GiB", fix)


def loopback() -> Check:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Check("loopback", True, f"127.0.0.1 can be bound (tried port {port})")


def writable(home: Path) -> Check:
    ok = os.access(home, os.W_OK)
    return Check("state folder", ok, str(home), "choose a folder that you can write, with --hosts")


def inventory(hosts_file: Path) -> Check:
    try:
        found = load_inventory(hosts_file)
    except OrchestrateError as error:
        return Check("inventory", False, str(error), "mend the line, or start over with `orchestrate init`")
    return Check("inventory", True, f"{len(found.hosts)} host(s): {', '.join(found.hosts)}")


def store(url: str) -> Check:
    """Looks at every page of the store and changes nothing."""
    fix = "restore a copy of it (orchestrate keeps one before each change of schema), or choose another with --state"
    try:
        with open_store(url, read_only=True) as opened:
            damage = opened.database.damage()
            detail = f"corrupt ({damage})" if damage else f"{opened.events.count()} events"
    except StoreNotReadyError as error:
        return Check("store", True, str(error))
    except OrchestrateError as error:
        return Check("store", False, str(error), fix)
    return Check("store", not damage, detail, fix)
