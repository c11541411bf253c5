"""Long work on a host as a service of its own: it goes on without the connection and is found again on resume."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.remote.services import ServiceDriver, ServiceUnit
from orchestrator.transport.base import CommandTimeout, Transport

# The exit code is a file: it outlives the unit, the connection and a restart of the host.
# Work that was stopped (143: by SIGTERM, which may reach it before the shell around it) leaves no result.
_WRAPPER = (
    'rm -f "$0"; "$@"; code=$?; [ $code = 143 ] || { echo $code > "$0.part" && mv -f "$0.part" "$0"; }; exit $code'
)
WORK_UNITS = "orchestrate-work-"  # how the names of its units begin
POLL_S = 1.0
LINES = 10_000  # of the log's end, at each look


@dataclass(frozen=True)
class LongWork:
    """A named piece of work below `folder` (on the host). The name identifies it: the same name is the same work."""

    transport: Transport
    services: ServiceDriver
    folder: str
    name: str
    privileged: bool = False

    @property
    def unit(self) -> str:
        suffix = ".service" if self.services.kind == "systemd" else ""
        return f"{WORK_UNITS}{self.name}{suffix}"

    @property
    def _exit_file(self) -> str:
        return posixpath.join(self.folder, f"{self.name}.exit")

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> None:
        """Begin, unless it runs already or has ended (see exit_code); forget() makes it begin anew."""
        if self.exit_code() is not None or self.services.status(self.unit).running:
            return
        self.transport.run(["mkdir", "-p", self.folder], sudo=self.privileged, check=True)
        wrapped = ("/bin/sh", "-c", _WRAPPER, self._exit_file, *argv)
        self.services.install(ServiceUnit(self.unit, wrapped, env=env or {}, cwd=cwd, restart="no", stop_timeout_s=20))
        self.services.start(self.unit)

    def exit_code(self) -> int | None:
        """None while it runs or was never started."""
        try:
            return int(self.transport.get_bytes(self._exit_file, sudo=self.privileged).strip())
        except FileNotFoundError:
            return None

    def wait(
        self,
        timeout_s: float,
        *,
        on_line: Callable[[str], None] | None = None,
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> int:
        """Wait for the end, showing new log lines; CommandTimeout leaves it running, so that a later wait goes on."""
        end = time.monotonic() + timeout_s
        lines: list[str] = []
        while True:
            code = self.exit_code()
            before, lines = lines, self.services.logs(self.unit, LINES)
            for line in _new(before, lines):
                if on_line is not None:
                    on_line(line)
            if code is not None:
                return code
            if not self.services.status(self.unit).running and self.exit_code() is None:
                raise OrchestrateError(
                    f"host {self.transport.host!r}: {self.name} ended without a result "
                    f"({' | '.join(lines[-3:]) or 'no log'}); "
                    "run again, it begins anew."
                )
            if time.monotonic() > end:
                raise CommandTimeout(f"{self.name} on host {self.transport.host!r} still runs after {timeout_s:g} s.")
            check_cancelled()
            time.sleep(POLL_S)

    def forget(self) -> None:
        """Stop it and take its traces away."""
        self.services.remove(self.unit)
        self.transport.run(["rm", "-f", self._exit_file], sudo=self.privileged, check=True)


def _new(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """What a log's end shows now and did not show before: once the log is long, old lines leave at its beginning."""
    for gone in range(len(before)):
        kept = len(before) - gone
        if before[gone : gone + 1] == now[:1] and before[gone:] == now[:kept]:
            return now[kept:]
    return now
