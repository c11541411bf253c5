"""What an SSH connection needs to know, independent of where it was configured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class SshSettings:
    """One target. `address` may be an ssh_config alias; `jump` is user@host:port or an alias, or several with commas.

    idle_timeout_s: how long the host may leave a keepalive unanswered before the connection counts as lost.
    sudo_password: called when a command needs root under `askpass`; its value only ever travels on stdin.
    """

    name: str
    address: str
    pinned_hosts: Path
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    jump: str | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    keepalive_s: float = 5.0
    sudo: Literal["nopasswd", "askpass", "none"] = "nopasswd"
    sudo_password: Callable[[], str] | None = None
    use_ssh_config: bool = True
    use_agent: bool = True
    use_default_keys: bool = True
    user_known_hosts: Path | None = None
