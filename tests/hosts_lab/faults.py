"""What can go wrong at a point of a deploy, injected into a real host, and how the world is put right again."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.wholefile import replacing
from tests.hosts_lab.lab import PREFIX, SCRIPTS, STATE, LabError, LabHost

CLOCK_LIBRARY = "/usr/lib/clockjump.so"
DAY_S = 86_400
Injection = Callable[["Fault"], None]


class Fault:
    """One fault on one host: prepare (before the deploy), inject, mend (after the operator ended)."""

    name = ""
    kills_operator = False

    def __init__(self, host: LabHost) -> None:
        self.host = host

    @classmethod
    def files(cls) -> dict[str, bytes]:
        """What the host needs on its disk before it boots."""
        return {}

    def prepare(self) -> None: ...

    def inject(self) -> None:
        raise NotImplementedError

    def mend(self) -> None: ...


class OperatorKilled(Fault):
    name = "kill -9 operator"
    kills_operator = True

    def inject(self) -> None: ...


class LinkDown(Fault):
    name = "link down"

    def inject(self) -> None:
        self.host.link(False)

    def mend(self) -> None:
        self.host.link(True)


class SshdKilled(Fault):
    name = "sshd killed"

    def inject(self) -> None:
        self.host.inside("pkill -KILL -x sshd", check=False)

    def mend(self) -> None:
        self.host.inside("systemctl reset-failed ssh; systemctl start ssh")


class PowerOff(Fault):
    name = "power off"

    def inject(self) -> None:
        self.host.power_off()
        self.host.up()


class ServiceCrash(Fault):
    name = "service crash"

    def inject(self) -> None:
        self.host.inside("systemctl kill -s KILL sglang.service", check=False)


class DiskFull(Fault):
    """/opt becomes a small file system of its own, since the machine's disk must not be filled."""

    name = "disk full"

    def prepare(self) -> None:
        self.host.inside(
            "systemctl stop sglang && mount -t tmpfs -o size=160m,mode=755 tmpfs /mnt && cp -a /opt/. /mnt/ && "
            "mount --move /mnt /opt && systemctl start sglang"
        )

    def inject(self) -> None:
        self.host.inside("dd if=/dev/zero of=/opt/fill bs=64k 2>/dev/null; true")

    def mend(self) -> None:
        self.host.inside("rm -f /opt/fill")


class ClockJump(Fault):
    name = "clock jump"

    @classmethod
    def files(cls) -> dict[str, bytes]:
        library = STATE / "cache" / "clockjump.so"
        if not library.exists():
            source = SCRIPTS / "clockjump.c"
            with replacing(library) as part:  # cells run in threads, and several may come here first
                subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(part), str(source), "-ldl"], check=True)
        return {CLOCK_LIBRARY: library.read_bytes(), "/etc/ld.so.preload": f"{CLOCK_LIBRARY}\n".encode()}

    def inject(self) -> None:
        self.host.inside(f"echo {DAY_S} > /run/clock-offset")
        seen = float(self.host.inside("python3 -c 'import time; print(time.time())'"))
        if abs(seen - time.time() - DAY_S) > 60:
            raise LabError("the clock of the host did not jump")


FAULTS: tuple[type[Fault], ...] = (
    OperatorKilled,
    LinkDown,
    SshdKilled,
    PowerOff,
    ServiceCrash,
    DiskFull,
    ClockJump,
)


def slow_uploads(host: LabHost, rate: str = "40mbit") -> None:
    """Make an upload last long enough to be hit."""
    veth = "v" + host.address.rsplit(".", 1)[1]
    subprocess.run(
        ["tc", "-n", f"{PREFIX}-lan", "qdisc", "replace", "dev", veth, "root", "tbf", "rate", rate, "burst", "64kb",
         "latency", "400ms"],
        check=True,
    )  # fmt: skip


def upload_started(host: LabHost) -> bool:
    """Whether a part of an upload has reached the host's disk, seen from outside."""
    with contextlib.suppress(OSError):
        return any(path.stat().st_size > 0 for path in Path(host.disk, "home/deploy").glob(".lab_plugin*.part"))
    return False
