"""The way round a service while it restarts: the host sends new connections to an engine that stands in for it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.remote.script import run_script
from orchestrator.remote.scripts.bridge import lifted
from orchestrator.transport.base import Transport

PROGRAM = "bridge"
HOLD_S = 800.0  # the host's own way back gives one command 900 s
HOST_DRAIN_S = 60.0  # what the host grants by itself to the last connections of the stand-in
State = Literal["off", "on", "lifted"]


@dataclass(frozen=True)
class Bridge:
    """One nft table on a host. Ports: the service's, the stand-in's, and one that leads past it to the service itself.

    on: new connections reach the stand-in. lifted: they reach the service again, and those that the stand-in has go on.
    Connections from before either change stay where they are. `filtered`: incoming connections may be filtered.
    """

    transport: Transport
    service: int
    side: int
    unit: str
    start_timeout_s: float
    filtered: bool = False

    @property
    def direct(self) -> int:
        return self.side + 1

    @property
    def table(self) -> str:
        return "orchestrate_" + re.sub(r"[^A-Za-z0-9_]", "_", self.unit.removesuffix(".service"))

    @property
    def end_with_unit(self) -> tuple[str, ...]:
        """What systemd runs when the stand-in ends in whatever way: no connection is sent to it from then on.

        Where there is no table any more these rules fit nothing, and none is made.
        """
        rules = "\n".join(lifted(self._wish("lift")))
        return ("/bin/sh", "-c", 'printf "%s\\n" "$0" | nft -f - 2>/dev/null; true', rules)

    def why_not(self) -> str:
        """Why this host cannot redirect, '' if it can. Nothing is changed for it."""
        if self.direct > 65535:
            return f"there is no port {self.direct}"
        return str(self._ask("check", filtered=self.filtered)["why"])

    def on(self) -> None:
        self._ask("on")

    def lift(self) -> None:
        self._ask("lift")

    def end(self, drain_s: float) -> None:
        """Lift, let the stand-in's connections end, stop it and take the table away; nothing where there is none."""
        self._ask("end", drain_s=drain_s, timeout_s=drain_s + 120)

    def give_back(self) -> None:
        """As the host's own way back ends: as soon as the service answers by itself."""
        if self.state() == "on":
            self._ask("hold", limit_s=self.start_timeout_s, timeout_s=self.start_timeout_s + 60)
        self.end(HOST_DRAIN_S)

    def state(self) -> State:
        found: State = self._ask("state")["state"]
        return found

    def connections(self, port: int) -> int:
        """Open connections of whoever serves this port."""
        return int(self._ask("connections", port=port)["open"])

    def before_restore(self, program: str) -> tuple[tuple[str, ...], ...]:
        """What the host does first when it goes back by itself; `program`: where the host-side part lies."""
        return (self._command(program, "again"),)

    def after_restore(self, program: str) -> tuple[tuple[str, ...], ...]:
        """And last: the stand-in answers until the restored service does, and is then stopped."""
        holds = math.ceil(self.start_timeout_s / HOLD_S)
        hold = self._command(program, "hold", limit_s=min(self.start_timeout_s, HOLD_S))
        return (*(hold for _ in range(holds)), self._command(program, "end", drain_s=HOST_DRAIN_S))

    def at_boot(self, program: str) -> tuple[tuple[str, ...], ...]:
        """Rules do not survive a restart of the host, unless somebody saved them in that minute."""
        return (self._command(program, "off"),)

    def _command(self, program: str, verb: str, **more: float) -> tuple[str, ...]:
        return ("python3", program, json.dumps(self._wish(verb, **more)))

    def _wish(self, verb: str, **more: Any) -> dict[str, Any]:
        ports = {"service": self.service, "side": self.side, "direct": self.direct}
        return {"verb": verb, "table": self.table, "unit": self.unit, **ports, **more}

    def _ask(self, verb: str, timeout_s: float = 120.0, **more: Any) -> dict[str, Any]:
        return dict(run_script(self.transport, PROGRAM, self._wish(verb, **more), sudo=True, timeout_s=timeout_s))
