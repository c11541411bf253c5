"""Copies of engine packages on the disk, the machine itself, and the server's own account of its arguments."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import time
from typing import Any

from tasks.inspecting.host_side.base import KEY_VARIABLE, MASK, SECRET_NAME, Facts, read
from tasks.inspecting.host_side.imports import version_of

PRUNED = {"proc", "sys", "dev", "node_modules", "__pycache__", ".git", "snap", "snapshots", "blobs", "hub"}
HIDDEN_BUT_SEARCHED = {".local", ".venv", ".conda", ".virtualenvs", ".pyenv"}
ROOTS = ("/opt", "/srv", "/home", "/root", "/usr/local", "/usr/lib", "/data", "/workspace", "/app", "/var/lib")
MAX_DEPTH = 7
MAX_ANSWER = 4 << 20
GPU_FIELDS = (
    "index,name,uuid,compute_cap,memory.total,memory.used,memory.free,driver_version,mig.mode.current,ecc.mode.current,"
    "clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,clocks_throttle_reasons.active,"
    "persistence_mode,utilization.gpu"
)
GPU_COMMANDS = {
    "gpus": ["nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv,nounits"],
    "apps": ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,nounits"],
    "list": ["nvidia-smi", "-L"],
    "header": ["nvidia-smi"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "p2p": ["nvidia-smi", "topo", "-p2p", "r"],
}
UNIT_KEYS = (
    "Id,LoadState,ActiveState,SubState,MainPID,NRestarts,Result,FragmentPath,DropInPaths,ExecStart,Environment,"
    "EnvironmentFiles,User,WorkingDirectory,Restart,KillMode,TimeoutStartUSec,TimeoutStopUSec,LimitMEMLOCK,LimitNOFILE,"
    "UnitFileState,ActiveEnterTimestamp,NeedDaemonReload"
)


def copies(roots: list[str], deadline: float) -> tuple[list[Facts], bool]:
    """(every folder below the roots that holds an sglang or vllm package, whether the deadline cut it short)."""
    found: dict[str, Facts] = {}
    queue = [(root, 0) for root in roots]
    seen: set[str] = set()
    while queue:
        if time.monotonic() > deadline:
            return sorted(found.values(), key=lambda c: str(c["path"])), True
        folder, depth = queue.pop(0)
        key = os.path.realpath(folder)
        if key in seen:
            continue
        seen.add(key)
        try:
            with os.scandir(folder) as scan:
                entries = [e.name for e in scan if e.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for package, mark in (("sglang", "srt"), ("vllm", "engine")):
            path = os.path.join(folder, package)
            if package in entries and is_package(path, mark):
                found[path] = {"package": package, "path": path, "version": version_of(path)}
        if os.path.basename(folder) not in ("site-packages", "dist-packages") and depth < MAX_DEPTH:
            queue += [(os.path.join(folder, n), depth + 1) for n in entries if searched(folder, n, found)]
    return sorted(found.values(), key=lambda c: str(c["path"])), False


def is_package(path: str, mark: str) -> bool:
    return os.path.isdir(os.path.join(path, mark)) and os.path.isfile(os.path.join(path, "__init__.py"))


def searched(folder: str, name: str, found: dict[str, Facts]) -> bool:
    hidden = name.startswith(".") and name not in HIDDEN_BUT_SEARCHED
    return name not in PRUNED and not hidden and os.path.join(folder, name) not in found


def disk_facts(path: str) -> Facts | None:
    """Space where a path lies or would be made."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        stat = os.statvfs(path or "/")
    except OSError:
        return None
    size = stat.f_frsize
    sizes = {"free_bytes": stat.f_bavail * size, "total_bytes": stat.f_blocks * size}
    return dict(sizes, read_only=bool(stat.f_flag & os.ST_RDONLY))


def first(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.M)
    return match.group(1) if match else ""


def system_facts(paths: list[str]) -> Facts:
    """Raw texts of the machine; the operator's side parses them."""
    cpuinfo = read("/proc/cpuinfo", 4 << 20) or ""
    init = read("/proc/1/environ")
    texts = {
        "os_release": "/etc/os-release",
        "meminfo": "/proc/meminfo",
        "loadavg": "/proc/loadavg",
        "limits": "/proc/self/limits",
        "cmdline": "/proc/cmdline",
        "container_file": "/run/systemd/container",
        "cgroup": "/proc/1/cgroup",
        "nvidia_driver_file": "/proc/driver/nvidia/version",
    }
    facts: Facts = {name: read(path) or "" for name, path in texts.items()}
    facts.update(
        kernel=platform.release(),
        machine=platform.machine(),
        glibc="-".join(platform.libc_ver()),
        uid=os.getuid(),
        hostname=platform.node(),
        python=platform.python_version(),
        cpu_model=first(r"^model name\s*:\s*(.*)$", cpuinfo),
        cpu_flags=first(r"^flags\s*:\s*(.*)$", cpuinfo),
        cpus=os.cpu_count(),
        cpus_usable=len(os.sched_getaffinity(0)),
        disks={path: disk_facts(path) for path in ["/", *paths]},
        dockerenv=os.path.exists("/.dockerenv"),
        init_container=None if init is None else first(r"(?:^|\0)container=([^\0]*)", init),
        proxmox_host=os.path.isdir("/etc/pve/lxc"),
        systemd_booted=os.path.isdir("/run/systemd/system"),
    )
    return facts


def server_info(port: int) -> Facts | None:
    """The server's own account of its arguments (GET only), secrets masked; None if nothing answers."""
    for path in ("/server_info", "/get_server_info"):
        status, body = ask_server(port, path)
        if status in (401, 403):
            return {"denied": status}
        if not status:
            return None
        try:
            data = json.loads(body) if status == 200 else None
        except (ValueError, RecursionError):
            return None
        if isinstance(data, dict):
            small = {key: value for key, value in data.items() if len(json.dumps(value)) < 4000}
            return {key: masked_value(key, value) for key, value in small.items()}
    return None


def ask_server(port: int, path: str, seconds: float = 2.0) -> tuple[int, str]:
    """(status, text) of one GET on the loopback, redirects not followed; (0, "") without a whole answer in time."""
    import http.client  # costs a third of this script's start, and many calls ask no server

    def late(*_: Any) -> None:
        raise TimeoutError

    connection = http.client.HTTPConnection("127.0.0.1", port)
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(
        signal.ITIMER_REAL, seconds
    )  # of the whole exchange: a socket's time-out begins anew with each byte
    try:
        key = os.environ.get(KEY_VARIABLE)
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        return 0, ""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        connection.close()


def masked_value(key: str, value: Any) -> Any:
    named = SECRET_NAME.search(key) and isinstance(value, str) and "tokenizer" not in key.lower()
    return MASK if named else value
