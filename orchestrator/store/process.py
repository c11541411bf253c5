"""Names a process so that another one can tell later whether it still lives, whatever the clock did since."""

from __future__ import annotations

import functools
import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessName:
    """A process of a machine: machine id, boot, PID namespace, PID and its start time in clock ticks."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_text(text: str) -> ProcessName | None:
        try:
            return ProcessName(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def alive(self) -> bool | None:
        """True or False where this machine can tell, None for a process of another machine or container."""
        here = current_process()
        if self.machine != here.machine:
            return None
        if self.boot != here.boot:
            return False
        if self.namespace != here.namespace:
            return None
        return _start_ticks(self.pid) == self.started


def current_process() -> ProcessName:
    machine, boot, namespace = _machine()
    return ProcessName(machine, boot, namespace, os.getpid(), _start_ticks(os.getpid()) or "")


@functools.cache
def who() -> str:
    """The person and machine as shown to others, for example `ada@workbench`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry in the password file
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@functools.cache
def _machine() -> tuple[str, str, str]:
    machine = _read("/etc/machine-id") or socket.gethostname()
    return machine, _read("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")


def _start_ticks(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat; None when there is no such process (or it is a zombie)."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    fields = text.rpartition(")")[2].split()  # the name in brackets may itself hold spaces and brackets
    return None if fields[0] in "ZX" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
