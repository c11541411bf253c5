"""The dead man's switch: the host itself brings the previous release back unless a fresh login confirms the new."""

from __future__ import annotations

import json
import posixpath
import secrets
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from orchestrator.errors import OrchestrateError
from orchestrator.release.store import ReleaseStore
from orchestrator.remote.script import source
from orchestrator.remote.services import RestorePlan
from orchestrator.transport.base import Transport

DeadmanState = Literal["never armed", "armed", "firing", "fired", "failed", "disarmed"]


@dataclass(frozen=True)
class DeadmanStatus:
    """What the host says about its switch. restores: the release that firing brings back; steps: what firing did.

    begun: an armed switch whose firing was cut short, by a restart of the host for example.
    """

    state: DeadmanState
    token: str = ""
    why: str = ""
    restores: str | None = None
    steps: tuple[dict[str, Any], ...] = ()
    begun: bool = False


class Trigger(Protocol):
    """How the host waits: a detached process, or systemd timer and boot unit. Only the switch of `token` may fire."""

    def start(self, script: str, folder: str, seconds: float, token: str) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class ProcessTrigger:
    """A detached process: survives the connection and the operator, not a reboot of the host."""

    transport: Transport

    def start(self, script: str, folder: str, seconds: float, token: str) -> None:
        self.transport.run(["python3", script, "detach", folder, token], check=True)

    def stop(self) -> None:
        return None  # it sees for itself that the switch was disarmed


@dataclass(frozen=True)
class Deadman:
    """One switch per root. Arm before the switch of releases, disarm after the proof."""

    store: ReleaseStore
    trigger: Trigger

    @property
    def folder(self) -> str:
        return self.store.layout.deadman

    @property
    def script(self) -> str:
        return self.program("deadman")

    def program(self, name: str) -> str:
        """Where a program that the host runs while it restores lies there."""
        return posixpath.join(self.folder, f"{name}.py")

    def arm(self, plan: RestorePlan, current: str | None, seconds: float) -> str:
        """From now on the host restores `plan` and `current` (a release id) by itself after `seconds`. Returns a token.

        Raises when a switch is armed already: its outcome must be known first.
        """
        self.store.prepare()
        now = self.status()
        if now.state in ("armed", "firing"):
            raise OrchestrateError(
                f"host {self.store.transport.host!r}: a switch of an earlier run is still {now.state}; wait until "
                "it has "
                "fired, then look with `orchestrate status`."
            )
        token = secrets.token_hex(8)
        link = None if current is None else posixpath.join("releases", current)
        document = {
            "token": token,
            "restores": current,
            "seconds": seconds,
            "files": dict(plan.files),
            "links": {self.store.layout.current: link},
            "commands": [list(command) for command in plan.commands],
            "boot_commands": [list(command) for command in plan.boot_commands or plan.commands],
        }
        self.store.put(source("deadman").decode(), self.script, mode=0o755)
        for name in plan.programs:
            self.store.put(source(name).decode(), self.program(name), mode=0o755)
        # Room for the host's own record on a disk that is full by then, and the lock that both sides take.
        script = 'head -c 65536 /dev/zero > "$1/reserve" && : >> "$1/lock" && sync "$1/reserve"'
        self.store.sh(script, self.folder)
        self.store.put(json.dumps(document), posixpath.join(self.folder, "armed.json"), mode=0o600)
        self.trigger.start(self.script, self.folder, seconds, token)
        armed = self.status()
        if armed.state != "armed" or armed.token != token:
            raise OrchestrateError(
                f"host {self.store.transport.host!r}: the switch could not be armed; nothing was changed."
            )
        return token

    def disarm(self, token: str) -> DeadmanStatus:
        """Confirm through a fresh login, the proof that the host can still be reached. Look at the returned state."""
        fresh = self.store.transport.fresh()
        try:
            status = self._ask(fresh, "disarm", token)
        finally:
            fresh.close()
        if status.state == "disarmed":
            self.trigger.stop()
        return status

    def fire(self, token: str) -> DeadmanStatus:
        """Restore now, by the same way that the host would take."""
        status = self._ask(self.store.transport, "fire", token)
        self.trigger.stop()
        return status

    def status(self) -> DeadmanStatus:
        """What happened, also after an operator or a connection was lost."""
        probe = self.store.sh('test -e "$1" && echo yes || true', self.script).strip()
        return self._ask(self.store.transport, "status", "") if probe == "yes" else DeadmanStatus("never armed")

    def _ask(self, transport: Transport, verb: str, token: str) -> DeadmanStatus:
        done = transport.run(
            ["python3", self.script, verb, self.folder, *([token] if token else [])],
            sudo=self.store.privileged,
            check=True,
            timeout_s=1800,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        return DeadmanStatus(
            state=answer["state"],
            token=answer.get("token", ""),
            why=answer.get("why", ""),
            restores=answer.get("restores"),
            steps=tuple(answer.get("steps", ())),
            begun=answer.get("begun", answer["state"] == "armed"),  # a script of before does not tell
        )
