"""Starts, finds and removes the embedded host: a loopback SSH server that writes only to a folder of its own."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.transport import hostkeys
from orchestrator.transport.base import HostUnreachable
from orchestrator.transport.settings import SshSettings

START_TIMEOUT_S = 20.0


def embedded_folder(state_dir: Path, name: str) -> Path:
    """Everything that the embedded host `name` ever writes."""
    return (state_dir / ".embedded" / name).resolve()


def ensure_embedded(
    state_dir: Path,
    name: str,
    *,
    port: int | None = None,
    idle_timeout_s: float = 60.0,
    connect_timeout_s: float = 10.0,
) -> SshSettings:
    """Settings of a running embedded host, started now if it is not up. Raises if `port` is taken by something else."""
    folder = embedded_folder(state_dir, name)
    with _locked(folder):
        _make_keys(folder)
        listening = _running_port(folder)
        if listening is None:
            listening = _start(folder, name, port)
        elif port is not None and port != listening:
            raise UsageError(
                f"the embedded host {name!r} already runs on port {listening}, not {port}; run "
                f"`orchestrate hosts clean {name}` first, or correct the port in hosts.yaml."
            )
        host_key = paramiko.Ed25519Key(filename=str(folder / "host_key"))
        hostkeys.pin(folder / "known_hosts", hostkeys.known_name("127.0.0.1", listening), host_key)
    return SshSettings(
        name=name,
        address="127.0.0.1",
        port=listening,
        user=getpass.getuser(),
        identity_file=str(folder / "user_key"),
        pinned_hosts=folder / "known_hosts",
        sudo="none",
        use_ssh_config=False,
        use_agent=False,
        use_default_keys=False,
        idle_timeout_s=idle_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )


def embedded_home(state_dir: Path, name: str) -> Path:
    return embedded_folder(state_dir, name) / "home"


def stop_embedded(state_dir: Path, name: str) -> bool:
    """End only the SSH server; services of the host go on. True if one was running."""
    folder = embedded_folder(state_dir, name)
    found = _read_process(folder)
    if found is None or not _is_same_process(found):
        return False
    os.kill(int(str(found["pid"])), signal.SIGTERM)
    _wait_gone(found, 5.0)
    return True


def remove_embedded(state_dir: Path, name: str) -> list[str]:
    """Stop the host's services and server, then delete its folder. Returns what was removed, in words."""
    folder = embedded_folder(state_dir, name)
    if not folder.exists():
        return []
    done: list[str] = []
    for service in sorted((folder / "home" / ".orchestrate" / "services").glob("*/supervisor.py")):
        subprocess.run(
            [sys.executable, str(service), "stop", str(service.parent)], check=False, timeout=300, capture_output=True
        )
        done.append(f"service {service.parent.name}")
    if stop_embedded(state_dir, name):
        done.append("ssh server")
    left = processes_of(folder / "home")
    if left:
        _end(left)
        done.append(f"{len(left)} left-over processes")
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
    return [*done, str(folder)]


def processes_of(home: Path) -> list[int]:
    """Pids of every process that lives in this embedded host: its HOME says so."""
    mark = f"HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _end(pids: list[int]) -> None:
    for sig in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(_start_time(pid) for pid in pids):
            time.sleep(0.05)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_keys(folder: Path) -> None:
    for name in ("host_key", "user_key"):
        path = folder / name
        if path.exists():
            continue
        pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        descriptor = os.open(path.with_suffix(".part"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            target.write(pem)
        os.replace(path.with_suffix(".part"), path)


def _start(folder: Path, name: str, port: int | None) -> int:
    wanted = port if port is not None else _last_port(folder)
    if wanted and not _bindable(wanted):
        if port is not None:
            raise UsageError(
                f"port {port} of the embedded host {name!r} is already in use on this machine; free it or "
                "choose another in hosts.yaml."
            )
        wanted = 0
    (folder / "port").unlink(missing_ok=True)
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.transport.embedded_server", str(folder), str(wanted)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=_server_environment(),
        )
    _write_process(folder, process.pid)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        listening = _running_port(folder)
        if listening is not None:
            return listening
        time.sleep(0.02)
    last = (folder / "server.log").read_text(errors="replace").strip().splitlines()[-1:] or ["it wrote no log"]
    raise HostUnreachable(f"the embedded host {name!r} did not start ({last[0]}); see {folder / 'server.log'}.")


def _server_environment() -> dict[str, str]:
    """Ours, with the base interpreter in place of this program's own environment: that one is the operator's."""
    own, base = os.path.join(sys.prefix, "bin"), os.path.join(sys.base_prefix, "bin")
    path = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.normpath(part) != own]
    source = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PATH": os.pathsep.join([base, *path]), "PYTHONPATH": source}


def _running_port(folder: Path) -> int | None:
    found = _read_process(folder)
    port = _last_port(folder)
    if found is None or not port or not _is_same_process(found):
        return None
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as probe:
            probe.settimeout(5)
            return port if probe.recv(4) == b"SSH-" else None
    except OSError:
        return None


def _last_port(folder: Path) -> int:
    try:
        return int((folder / "port").read_text())
    except (OSError, ValueError):
        return 0


def _bindable(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _start_time(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat, which tells a process from a later one with the same pid; None for a zombie too."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _write_process(folder: Path, pid: int) -> None:
    part = folder / "server.json.part"
    part.write_text(json.dumps({"pid": pid, "start_time": _start_time(pid)}))
    os.replace(part, folder / "server.json")


def _read_process(folder: Path) -> Mapping[str, object] | None:
    try:
        data = json.loads((folder / "server.json").read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("pid"), int) else None


def _is_same_process(found: Mapping[str, object]) -> bool:
    now = _start_time(int(str(found["pid"])))
    return now is not None and now == found.get("start_time")


def _wait_gone(found: Mapping[str, object], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while _is_same_process(found):
        if time.monotonic() > deadline:
            raise OrchestrateError(f"the embedded SSH server (pid {found['pid']}) did not end; stop it by hand.")
        time.sleep(0.02)
