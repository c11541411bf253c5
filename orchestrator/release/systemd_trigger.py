"""The dead man's switch on a systemd host: a timer, and a one-shot at boot, both on disk so that a reboot keeps them."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from orchestrator.remote import systemd_text
from orchestrator.remote.systemd_driver import SystemdDriver
from orchestrator.transport.base import Transport

SERVICE = "orchestrate-deadman.service"
TIMER = "orchestrate-deadman.timer"
BOOT = "orchestrate-deadman-boot.service"


@dataclass(frozen=True)
class SystemdTrigger:
    """Implements Trigger for one unit; `suffix` tells the timers of a host's replicas apart."""

    transport: Transport
    driver: SystemdDriver
    unit: str
    suffix: str = ""

    def named(self, name: str) -> str:
        """The name of one of our units for this replica."""
        stem, dot, kind = name.rpartition(".")
        return f"{stem}{self.suffix}{dot}{kind}"

    def start(self, script: str, folder: str, seconds: float, token: str) -> None:
        python = self.transport.run(["/bin/sh", "-c", "command -v python3"], check=True).stdout.strip()
        for name, text in self.units(python, script, folder, seconds, token).items():
            self.driver.write_unit(name, text)
        self.driver.reload()
        self.driver.enable(self.named(BOOT))
        self.driver.enable(self.named(TIMER))
        self.driver.restart(self.named(TIMER))  # an old timer of the same name must count anew

    def units(self, python: str, script: str, folder: str, seconds: float, token: str) -> dict[str, str]:
        """The unit files by name. The timer's names its switch: one left from an earlier switch must not fire this one."""
        command = systemd_text.command
        return {
            self.named(SERVICE): systemd_text.render(
                "deadman.service.j2", unit=self.unit, command=command([python, script, "fire", folder, token])
            ),
            self.named(TIMER): systemd_text.render("deadman.timer.j2", unit=self.unit, seconds=f"{seconds:g}"),
            self.named(BOOT): systemd_text.render(
                "deadman-boot.service.j2",
                unit=self.unit,
                armed=posixpath.join(folder, "armed.json"),
                command=command([python, script, "boot", folder]),
                wanted_by=self.driver.scope.wanted_by,
            ),
        }

    def stop(self) -> None:
        self.driver.disable(self.named(TIMER))
        self.driver.disable(self.named(BOOT))
        self.driver.remove_units([self.named(name) for name in (SERVICE, TIMER, BOOT)])
