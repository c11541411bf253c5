"""What every way to reach a host offers; tasks and builders know nothing below this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.errors import HostError, OrchestrateError

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]


class HostUnreachable(HostError):
    """No connection within the connect time-out."""


class HostKeyUnknown(HostError):
    """The host's key is not pinned yet; `orchestrate hosts trust HOST` shows and pins it."""


class HostKeyMismatch(HostError):
    """The host showed another key than the pinned one."""


class AuthenticationFailed(HostError):
    """The host refused every key and agent identity that was offered."""


class SudoUnavailable(HostError):
    """The command needs root and the configured sudo method does not give it."""


class ConnectionLost(HostError):
    """The connection broke while a command ran: whether its effect took place is unknown."""


class CommandTimeout(OrchestrateError):
    """The command did not end within its time-out; it was told to stop."""


class CommandFailed(OrchestrateError):
    """A command that had to succeed ended with another exit code."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class CommandResult:
    """A command that ended: its exit code and what it printed (text, UTF-8 with replacement)."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    duration_s: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Transport(Protocol):
    """One multiplexed connection to one host. Methods raise the HostError family, never return half results."""

    @property
    def host(self) -> str:
        """Inventory name of the host."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = 60.0,
        sudo: bool = False,
        check: bool = False,
        on_line: OnLine | None = None,
        mask: Sequence[str] = (),
    ) -> CommandResult:
        """Run one command (argv, quoted for the remote shell here). With check, a non-zero exit raises CommandFailed.

        on_line receives each line while it is printed; mask lists values to hide in errors and logs.
        """
        ...

    def put_file(self, local: str, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        """Upload to a temporary name beside the target, check its SHA-256 on the host, then rename."""
        ...

    def put_bytes(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        """As put_file, from memory."""
        ...

    def get_bytes(self, remote: str, *, sudo: bool = False, max_bytes: int = 64 << 20) -> bytes:
        """Content of a remote file; FileNotFoundError if there is none."""
        ...

    def forward(self, remote_port: int, remote_host: str = "127.0.0.1") -> AbstractContextManager[int]:
        """A loopback port on this machine that leads to remote_host:remote_port as seen from the host."""
        ...

    def fresh(self) -> Transport:
        """A second, newly authenticated connection to the same host (the proof that a login still works)."""
        ...

    def when_back(self, check: Callable[[], None]) -> None:
        """`check` runs after every reconnect, before anything else is sent; what it raises reaches whoever reconnected."""
        ...

    def close(self) -> None: ...
