"""Processes of a host: who listens on a port, what a pid is, what holds the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.remote.script import run_script
from orchestrator.transport.base import Transport


@dataclass(frozen=True)
class ProcessFacts:
    """One live process. start_time (clock ticks after boot) tells it from a later one with the same pid."""

    pid: int
    ppid: int
    sid: int
    start_time: str
    started_at: float
    uid: int
    user: str
    cmdline: tuple[str, ...]
    exe: str
    cwd: str
    unit: str
    rss_bytes: int
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def described(self) -> str:
        """For a person: pid, who, unit, and the start of the command line."""
        where = f" in {self.unit}" if self.unit else ""
        return f"pid {self.pid} of {self.user}{where}: {' '.join(self.cmdline)[:120]}"


def processes(
    transport: Transport, pids: Sequence[int], *, environ: bool = False, sudo: bool = False
) -> list[ProcessFacts]:
    """Facts of the pids that exist and may be read."""
    return _facts(run_script(transport, "procfacts", {"pids": list(pids), "environ": environ}, sudo=sudo))


def listening_on(transport: Transport, port: int, *, environ: bool = False, sudo: bool = False) -> list[ProcessFacts]:
    """Processes with a listening TCP socket on `port`; those of other users are only seen with sudo."""
    return _facts(run_script(transport, "procfacts", {"port": port, "environ": environ}, sudo=sudo))


def matching(transport: Transport, pattern: str, *, environ: bool = False, sudo: bool = False) -> list[ProcessFacts]:
    """Processes whose command line matches a regular expression."""
    return _facts(run_script(transport, "procfacts", {"match": pattern, "environ": environ}, sudo=sudo))


def _facts(rows: list[dict[str, Any]]) -> list[ProcessFacts]:
    return [ProcessFacts(**{**row, "cmdline": tuple(row["cmdline"])}) for row in rows if not row.get("denied")]
