"""Every error a user can meet, and the exit code it ends the program with."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes that scripts rely on (see docs/contract.md)."""

    DONE = 0
    FAILED_UNCHANGED = 1
    USAGE = 2
    UNREACHABLE = 3
    ROLLED_BACK = 4
    ROLLBACK_UNVERIFIED = 5
    LOCKED = 6
    PLAN_STALE = 7
    BENCH_INVALID = 8
    NOT_ADOPTED = 9
    INTERRUPTED = 130


class OrchestrateError(Exception):
    """One sentence for a person: what happened, where, and what to do next."""

    exit_code: ExitCode = ExitCode.FAILED_UNCHANGED


def one_line(error: BaseException, limit: int = 2000) -> str:
    """What a foreign error says, on one line and not endless; its type's name when it says nothing."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]}…"


class UsageError(OrchestrateError):
    """The command line or a file that it names is wrong."""

    exit_code = ExitCode.USAGE


class HostError(OrchestrateError):
    """The host could not be reached, or its identity could not be proven."""

    exit_code = ExitCode.UNREACHABLE


class LockedError(OrchestrateError):
    """Another run holds the host."""

    exit_code = ExitCode.LOCKED


class PlanStaleError(OrchestrateError):
    """The host changed since the plan file was written."""

    exit_code = ExitCode.PLAN_STALE


class BenchInvalidError(OrchestrateError):
    """No valid benchmark row remains."""

    exit_code = ExitCode.BENCH_INVALID


class StoreError(OrchestrateError):
    """The store is corrupt, read-only, full, or written by a newer version."""

    exit_code = ExitCode.USAGE
