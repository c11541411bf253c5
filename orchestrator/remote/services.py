"""What a service on a host is, whatever runs it: the units, their state, and the driver interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Active = Literal["active", "activating", "deactivating", "inactive", "failed"]


@dataclass(frozen=True)
class ServiceUnit:
    """A service that orchestrate defines itself. `secret_env` goes to a file of mode 600, never into the unit.

    env_files, filled_in: as for Definition.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    env_files: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()
    cwd: str | None = None
    user: str | None = None
    description: str = ""
    restart: Literal["on-failure", "no"] = "on-failure"
    restart_s: float = 5.0
    start_timeout_s: float = 1800.0
    stop_timeout_s: float = 120.0
    life_s: float | None = None  # systemd ends it then, should nobody else have done so
    after_stop: tuple[str, ...] = ()  # systemd runs it as root whenever and however the service has ended


@dataclass(frozen=True)
class Override:
    """What replaces a unit's command and adds to its environment while a release of ours is live.

    The unit keeps its name, dependants and boot behaviour; clearing the override brings back exactly what was there.
    filled_in: as for Definition; the unit's own files stay in force.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    unset_env: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()
    cwd: str | None = None
    release: str = ""


@dataclass(frozen=True)
class RestorePlan:
    """What the host itself does to bring a definition back: files (text, or None to delete), then commands.

    boot_commands take the place of commands when the host restores while it boots; empty means the same commands.
    programs: host-side programs that the commands run, to be laid beside the one that restores.
    """

    files: Mapping[str, str | None]
    commands: tuple[tuple[str, ...], ...]
    boot_commands: tuple[tuple[str, ...], ...] = ()
    programs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServiceStatus:
    """The state of a service now. `since` is seconds since the epoch of the last change, 0 when it never ran."""

    active: Active
    main_pid: int = 0
    since: float = 0.0
    exit_code: int | None = None
    restarts: int = 0
    detail: str = ""

    @property
    def running(self) -> bool:
        return self.active == "active" and self.main_pid > 0


@dataclass(frozen=True)
class Definition:
    """How a service is defined at this moment: the effective command, and the texts it comes from by path.

    env_files: files on the host with more of its environment ("-" before one that may be missing); nobody reads them
    here, since that is where keys are. filled_in: variables that stand in `argv` as ${NAME}, because only those files
    or systemd itself know their values.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    user: str | None
    texts: Mapping[str, str]
    overridden: bool
    release: str = ""
    env_files: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()


class ServiceDriver(Protocol):
    """Defines and steers services by name. Every method may be repeated; stop returns when the processes are gone."""

    kind: str

    def install(self, unit: ServiceUnit) -> None:
        """Write or replace a unit of our own; does not start it."""
        ...

    def definition(self, name: str) -> Definition | None:
        """None when the host knows no such service."""
        ...

    def render_override(self, name: str, override: Override) -> Mapping[str, str]:
        """The files that set_override would write, by path; secrets are left out."""
        ...

    def set_override(self, name: str, override: Override) -> None:
        """Takes effect at the next start."""
        ...

    def clear_override(self, name: str) -> None: ...

    def restore_plan(self, name: str, override: Override | None) -> RestorePlan:
        """How the host, without any operator, serves `override` (None: the unit as it was found) again."""
        ...

    def start(self, name: str) -> None:
        """Start and return once the main process exists; readiness is for the caller to prove."""
        ...

    def stop(self, name: str) -> None:
        """Returns when every process of the service is gone."""
        ...

    def restart(self, name: str) -> None: ...

    def status(self, name: str) -> ServiceStatus: ...

    def logs(self, name: str, lines: int = 100) -> list[str]: ...

    def remove(self, name: str) -> None:
        """Stop it and take away what install wrote; a unit that was there before us stays."""
        ...
