"""Strict host keys: pinned keys first, then the user's own known_hosts; an unknown key is a typed refusal."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import paramiko

from orchestrator.transport.base import HostKeyMismatch, HostKeyUnknown
from orchestrator.wholefile import alone_in, replacing


def fingerprint(key: paramiko.PKey) -> str:
    """The SHA-256 fingerprint as OpenSSH prints it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return f"{key.get_name()} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def known_name(address: str, port: int) -> str:
    """The name under which known_hosts keeps a host."""
    return address if port == 22 else f"[{address}]:{port}"


def read_known_hosts(path: Path) -> paramiko.HostKeys:
    """Every usable line of a known_hosts file; what Paramiko cannot read (markers, new key types) is left out."""
    keys = paramiko.HostKeys()
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return keys
    for line in lines:
        text = line.strip()
        if not text or text.startswith(("#", "@")):
            continue
        try:
            entry = paramiko.hostkeys.HostKeyEntry.from_line(text)
        except (paramiko.SSHException, ValueError):
            continue
        if entry is not None and entry.key is not None:
            for name in entry.hostnames:
                keys.add(name, entry.key.get_name(), entry.key)
    return keys


def revoked_keys(path: Path) -> set[bytes]:
    """Key blobs that an `@revoked` line of a known_hosts file names."""
    found: set[bytes] = set()
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.split()
        if len(words) >= 4 and words[0] == "@revoked":
            try:
                found.add(base64.b64decode(words[3], validate=True))
            except ValueError:
                continue
    return found


def pin(path: Path, name: str, key: paramiko.PKey) -> None:
    """Make `key` the only pinned key of that type for `name` (a known_hosts name); the file is replaced whole."""
    entry = f"{name} {key.get_name()} {key.get_base64()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent):  # a key that is pinned for another host meanwhile must stay
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if line.split()[:2] != [name, key.get_name()]]
        with replacing(path) as part:
            part.write_text("\n".join([*kept, entry]) + "\n")


class RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Raises HostKeyUnknown with the fingerprint that the host showed."""

    def __init__(self, host: str) -> None:
        self.host = host

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise HostKeyUnknown(
            f"host {self.host!r} ({hostname}) shows a key that is not pinned ({fingerprint(key)}); compare it with the "
            f"host's own and run `orchestrate hosts trust {self.host}`."
        )


def harden(client: paramiko.SSHClient, host: str, pinned: Path, user_file: Path | None) -> None:
    """Give a client the pinned keys (they win) and the user's, and refuse everything else."""
    if pinned.exists():
        client.load_system_host_keys(str(pinned))  # Paramiko asks these first
    if user_file is not None:
        client.get_host_keys().update(read_known_hosts(user_file))
    client.set_missing_host_key_policy(RefuseUnknown(host))


def check_not_revoked(client: paramiko.SSHClient, host: str, user_file: Path | None) -> None:
    """Refuse a host whose key the user's known_hosts marks as revoked."""
    transport = client.get_transport()
    if transport is None or user_file is None:
        return
    if transport.get_remote_server_key().asbytes() in revoked_keys(user_file):
        raise HostKeyMismatch(f"host {host!r} shows a key that {user_file} marks as revoked; do not use this host.")


def mismatch(host: str, error: paramiko.BadHostKeyException) -> HostKeyMismatch:
    return HostKeyMismatch(
        f"host {host!r} shows another key ({fingerprint(error.key)}) than the pinned one "
        f"({fingerprint(error.expected_key)}); if the host was reinstalled, run `orchestrate hosts trust {host}`, "
        "otherwise someone may be in between."
    )
