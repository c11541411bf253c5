"""Real sshd + systemd hosts in namespaces of this machine, driven through the scripts in lab/."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.hosts.inventory import HostConfig

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SCRIPTS = HERE / "lab"
STATE = Path(os.environ.get("HOSTLAB", REPOSITORY / ".cache" / "hostlab"))
PREFIX = os.environ.get("HOSTLAB_PREFIX", "ol")
INSIDE = "HOSTLAB_INSIDE"  # set for the process that runs in the lab's network


class LabError(Exception):
    """A lab script failed; the message holds its last lines."""


def environment() -> dict[str, str]:
    return {**os.environ, "HOSTLAB": str(STATE), "HOSTLAB_PREFIX": PREFIX}


def script(name: str, *arguments: str, **extra: str) -> str:
    done = subprocess.run(
        [str(SCRIPTS / name), *arguments], env={**environment(), **extra}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LabError(f"{name} {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout.strip()


def prepare() -> None:
    """The base image (built once, cached) and an empty network; leftovers of a crashed run go first."""
    if os.geteuid() != 0:
        raise LabError("the test hosts need root (namespaces, mounts)")
    print(script("rootfs-build.sh"), flush=True)
    remove_all()
    script("network-up.sh")


def remove_all() -> None:
    script("host-down.sh", "--all")


def inside_network(command: list[str]) -> list[str]:
    """The command, run in the network of the hosts, where they have their addresses."""
    return ["nsenter", f"--net=/run/netns/{PREFIX}-lan", "env", f"{INSIDE}=1", *command]


@dataclass
class LabHost:
    """One host. files: name below / -> content, put there before the first boot. binds: folder outside -> inside."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    executables: tuple[str, ...] = ()
    binds: dict[str, str] = field(default_factory=dict)
    address: str = ""
    leader: int = 0

    @property
    def folder(self) -> Path:
        return STATE / "run" / self.name

    @property
    def disk(self) -> Path:
        """The host's own layer of the file system, seen from outside."""
        return self.folder / "ov" / "upper"

    def up(self) -> LabHost:
        """Boot, also after power_off; returns when sshd answers."""
        seed = STATE / "run" / f"seed-{self.name}"
        shutil.rmtree(seed, ignore_errors=True)  # of a crashed run, whose files are not this host's
        for name, content in self.files.items():
            path = seed / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if name in self.executables else 0o644)
        answer = script(
            "host-up.sh",
            self.name,
            HOSTLAB_SEED=str(seed) if self.files else "",
            HOSTLAB_BIND=" ".join(f"{outside}:{inside}" for outside, inside in self.binds.items()),
        )
        _, self.address, leader, _ = answer.split()
        self.leader = int(leader)
        return self

    def down(self) -> None:
        script("host-down.sh", self.name)
        subprocess.run(["rm", "-rf", str(STATE / "run" / f"seed-{self.name}")], check=True)

    def power_off(self) -> None:
        """Pull the plug; disk, address and keys stay."""
        script("host-down.sh", "--power-off", self.name)

    def link(self, up: bool) -> None:
        veth = "v" + self.address.rsplit(".", 1)[1]
        subprocess.run(["ip", "-n", f"{PREFIX}-lan", "link", "set", veth, "up" if up else "down"], check=True)

    def inside(self, command: str, *, check: bool = True, timeout_s: float = 60) -> str:
        """Run a shell command as root inside the host, without SSH: the truth that tests compare with."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--", "/bin/sh", "-c", command],
            capture_output=True, text=True, timeout=timeout_s, check=False,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        if check and done.returncode != 0:
            raise LabError(f"{command!r} in {self.name}: {done.stderr.strip()[-400:]}")
        return done.stdout

    @property
    def key(self) -> str:
        return str(STATE / "run" / "id")

    def pinned_line(self) -> str:
        return (self.folder / "known_hosts").read_text()

    def config(self, **changes: object) -> HostConfig:
        """As hosts.yaml would describe it."""
        fields: dict[str, object] = {
            "name": self.name,
            "address": self.address,
            "user": "deploy",
            "identity_file": self.key,
            "connect_timeout_s": 5,
            "idle_timeout_s": 6,
            "root": "/opt/ddtree",
            "model": {"target": "/models/target", "draft": "/models/draft"},
            "service": {"unit": "sglang.service", "port": 30000},
        }
        return HostConfig.model_validate({**fields, **changes})
