"""The host below the engines: container, systemd, limits, CPU, memory, disks, the service's unit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Unit:
    """A systemd unit as `systemctl show` has it; `exec_start` is masked. None values were not reported."""

    name: str
    state: str
    main_pid: int | None
    restarts: int
    fragment: str
    drop_ins: list[str]
    exec_start: list[str]
    environment: dict[str, str]
    user: str
    restart: str
    kill_mode: str
    start_timeout_s: float | None
    enabled: str
    needs_reload: bool


@dataclass(frozen=True)
class System:
    """Facts of the machine or container. Sizes in bytes; `limits` of this login, the service's are with its process."""

    kind: str
    systemd: int | None
    systemd_running: bool
    kernel: str
    os: str
    machine: str
    glibc: str
    uid: int
    cpu: str
    cpus: int
    amx: bool
    memory_bytes: int
    available_bytes: int
    load: float
    limits: dict[str, int | None]
    disks: dict[str, Any]
    iommu: str
    hostname: str
    unit: Unit | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_system(raw: Mapping[str, Any], commands: Mapping[str, Mapping[str, Any]]) -> System:
    systemd = re.match(r"systemd (\d+)", commands.get("systemd", {}).get("out", ""))
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]*)', raw.get("os_release", ""), re.M)
    kind, note = container_kind(raw, commands.get("virt", {}).get("out", "").strip())
    unit = read_unit(commands.get("unit", {}).get("out", "")) if "unit" in commands else None
    return System(
        kind=kind,
        systemd=int(systemd[1]) if systemd else None,
        systemd_running=bool(raw.get("systemd_booted")),
        kernel=raw.get("kernel", ""),
        os=pretty[1] if pretty else "",
        machine=raw.get("machine", ""),
        glibc=raw.get("glibc", ""),
        uid=int(raw.get("uid", -1)),
        cpu=raw.get("cpu_model", ""),
        cpus=int(raw.get("cpus_usable") or raw.get("cpus") or 0),
        amx="amx_bf16" in raw.get("cpu_flags", "").split(),
        memory_bytes=_kib(raw.get("meminfo", ""), "MemTotal"),
        available_bytes=_kib(raw.get("meminfo", ""), "MemAvailable"),
        load=float(load[0]) if (load := re.match(r"\d{1,9}(\.\d+)?", raw.get("loadavg") or "")) else 0.0,
        limits=read_limits(raw.get("limits", "")),
        disks=dict(raw.get("disks", {})),
        iommu=" ".join(re.findall(r"\S*iommu\S*|pci=\S+", raw.get("cmdline", ""))),
        hostname=raw.get("hostname", ""),
        unit=unit,
        notes=[note] if note else [],
    )


def container_kind(raw: Mapping[str, Any], virt: str) -> tuple[str, str]:
    """(bare, vm, lxc, proxmox-ct, docker, podman, … ; a note). A Proxmox CT is an LXC with a Proxmox kernel."""
    inside = (raw.get("container_file") or raw.get("init_container") or "").strip()
    if raw.get("dockerenv") or inside == "docker" or virt == "docker":
        return (
            "docker",
            "a container of Docker: its file system may vanish with it; name the image's owner before patching",
        )
    if inside == "lxc" or virt == "lxc" or "/lxc/" in raw.get("cgroup", ""):
        if "-pve" in raw.get("kernel", ""):
            return "proxmox-ct", ""
        return "lxc", ""
    if inside:
        return inside, ""
    if raw.get("proxmox_host"):
        return (
            "proxmox-host",
            "this is a Proxmox host: name the container under `container` in hosts.yaml to look inside it",
        )
    if virt and virt not in ("none", ""):
        return "vm", ""
    if raw.get("init_container") is None and not virt:
        return "unknown", "without root and systemd-detect-virt the kind of container can't be seen"
    return "bare", ""


def read_limits(text: str) -> dict[str, int | None]:
    """Soft limits from /proc/PID/limits; None is unlimited."""
    names = {"Max locked memory": "memlock_bytes", "Max open files": "nofile", "Max processes": "nproc"}
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        for title, key in names.items():
            if line.startswith(title):
                soft = re.match(r"\s*(unlimited|\d{1,20})\b", line[len(title) :])
                if soft:
                    found[key] = None if soft[1] == "unlimited" else int(soft[1])
    return found


def read_unit(text: str) -> Unit | None:
    """A unit from `systemctl show -p …`; None when systemd does not know it."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z]+", name):
            values[name] = f"{values[name]} ; {value}" if name in values and name.startswith("Exec") else value
    if not values or values.get("LoadState") in ("not-found", None):
        return None
    return Unit(
        name=values.get("Id", ""),
        state=f"{values.get('ActiveState', '?')} ({values.get('SubState', '?')})",
        main_pid=_whole(values.get("MainPID")) or None,
        restarts=_whole(values.get("NRestarts")),
        fragment=values.get("FragmentPath", ""),
        drop_ins=values.get("DropInPaths", "").split(),
        exec_start=exec_argv(values.get("ExecStart", "")),
        environment=_environment(values.get("Environment", "")),
        user=values.get("User", "") or "root",
        restart=values.get("Restart", ""),
        kill_mode=values.get("KillMode", ""),
        start_timeout_s=seconds(values.get("TimeoutStartUSec", "")),
        enabled=values.get("UnitFileState", ""),
        needs_reload=values.get("NeedDaemonReload") == "yes",
    )


def exec_argv(text: str) -> list[str]:
    """The argument list of `ExecStart={ path=… ; argv[]=… ; … }` (systemd's own quoting is lost there)."""
    match = re.search(r"argv\[\]=(.*?) ; (?:ignore_errors|flags)=", text)
    words = match[1] if match else text.strip("{} ")
    try:
        return shlex.split(words)
    except ValueError:
        return words.split()


def seconds(text: str) -> float | None:
    """`1min 30s`, `30min`, `infinity` (None) as seconds."""
    units = {
        "h": 3600,
        "min": 60,
        "s": 1,
        "ms": 0.001,
        "us": 1e-6,
        "d": 86400,
        "w": 604800,
        "y": 31557600,
        "month": 2629800,
    }
    parts = re.findall(r"(\d{1,15}(?:\.\d+)?)\s*([a-z]+)", text)
    if not parts or any(unit not in units for _, unit in parts):
        return None
    return float(sum(float(number) * units[unit] for number, unit in parts))


def _environment(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _kib(meminfo: str, name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d{{1,15}}) kB", meminfo, re.M)
    return int(match[1]) * 1024 if match else 0


def _whole(text: str | None) -> int:
    return int(text) if re.fullmatch(r"\d{1,15}", text or "", re.ASCII) and text else 0
