"""Pinning host keys: what a host shows, its fingerprint for a person to compare, and the pinned file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import paramiko

from orchestrator.errors import UsageError
from orchestrator.hosts import secrets
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import PINNED_HOSTS, connection_settings
from orchestrator.transport import hostkeys
from orchestrator.transport.connect import fetch_host_key


@dataclass(frozen=True)
class ShownKey:
    """A key that a host showed. `known_as` is its name in known_hosts; pinned: it is the pinned one already."""

    address: str
    known_as: str
    kind: str
    fingerprint: str
    pinned: bool
    key: paramiko.PKey

    def to_json(self) -> dict[str, str | bool]:
        return {"address": self.address, "kind": self.kind, "fingerprint": self.fingerprint, "pinned": self.pinned}


def shown_keys(config: HostConfig, state_dir: Path) -> list[ShownKey]:
    """Ask the host for its key, without logging in. Raises HostUnreachable; refuses the embedded host, whose key is ours."""
    if config.transport == "embedded":
        raise UsageError(f"host {config.name!r} is the embedded one: its key is made and pinned by orchestrate itself.")
    known_as, key = fetch_host_key(connection_settings(config, state_dir, secrets.Masker()))
    pinned = hostkeys.read_known_hosts(state_dir / PINNED_HOSTS)
    return [
        ShownKey(
            address=config.address or "",
            known_as=known_as,
            kind=key.get_name(),
            fingerprint=hostkeys.fingerprint(key).split(" ", 1)[1],
            pinned=pinned.check(known_as, key),
            key=key,
        )
    ]


def pin_key(config: HostConfig, state_dir: Path, keys: list[ShownKey]) -> None:
    """Trust these keys from now on, and only these, for this host."""
    for shown in keys:
        hostkeys.pin(state_dir / PINNED_HOSTS, shown.known_as, shown.key)
