"""Cut-over: one release takes the place of another on the same unit, guarded by the dead man's switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import ExitCode, HostError, OrchestrateError
from orchestrator.release.deadman import Deadman
from orchestrator.release.manifest import Manifest
from orchestrator.release.store import ReleaseStore
from orchestrator.remote.bridge import PROGRAM, Bridge
from orchestrator.remote.services import Override, RestorePlan, ServiceDriver, ServiceStatus

Log = Callable[[str], None]
ALONE_AFTER_S = 60.0  # after what stopping and waiting may take, the host ends by itself what brings a release back


class SwitchLost(OrchestrateError):
    """The host went back by itself while the switch was still being made; the previous release is in place again."""

    exit_code = ExitCode.ROLLED_BACK


@dataclass(frozen=True)
class Switched:
    """A switch that was made. stopped_at: on this machine's monotonic clock; down_s: from then to the new main process."""

    release: str
    previous: str | None
    token: str
    stopped_at: float
    down_s: float
    status: ServiceStatus


@dataclass(frozen=True)
class Activation:
    """Switches a unit between releases. `secret_env` reaches the service through a file of mode 600 only.

    after_restore: what the host does once it has gone back by itself, for example tell the router of its replica.
    stop_timeout_s: how long the unit may take to stop.
    bridge: how an engine stands in while the unit restarts, on a host that may do that.
    """

    store: ReleaseStore
    services: ServiceDriver
    deadman: Deadman
    unit: str
    secret_env: Mapping[str, str]
    after_restore: tuple[tuple[str, ...], ...] = ()
    stop_timeout_s: float = 0.0
    bridge: Bridge | None = None

    def override_for(self, manifest: Manifest) -> Override | None:
        """None for the service as it was found: its own unit, without a drop-in."""
        return None if manifest.kind == "found" else manifest.launch.override(manifest.id, self.secret_env)

    def restore_plan(self, manifest: Manifest) -> RestorePlan:
        plan = self.services.restore_plan(self.unit, self.override_for(manifest))
        boot = plan.boot_commands or plan.commands
        commands = (*plan.commands, *self.after_restore)
        if self.bridge is None:
            return replace(plan, commands=commands, boot_commands=boot)
        program, bridge = self.deadman.program(PROGRAM), self.bridge
        return replace(
            plan,
            commands=(*bridge.before_restore(program), *commands, *bridge.after_restore(program)),
            boot_commands=(*boot, *bridge.at_boot(program)),
            programs=(PROGRAM,),
        )

    def end_bridge(self, log: Log = lambda _line: None) -> None:
        """Take away what a switch that was cut short left standing in for the service, once that answers by itself."""
        if self.bridge is not None and self.bridge.state() != "off":
            log(f"{self.bridge.unit} stood in for {self.unit}: it goes as soon as {self.unit} answers by itself")
            self.bridge.give_back()

    def files_of(self, manifest: Manifest) -> Mapping[str, str]:
        """The unit files that switching to this release would write, for `plan`."""
        override = self.override_for(manifest)
        return {} if override is None else self.services.render_override(self.unit, override)

    def switch(
        self,
        target: Manifest,
        previous: Manifest,
        *,
        deadline_s: float,
        before_stop: Callable[[], None] | None = None,
        before_start: Callable[[], None] | None = None,
        at: Callable[[str], None] = lambda _point: None,
        log: Log = lambda _line: None,
    ) -> Switched:
        """Arm, stop, change the drop-in, start. The caller proves the result, then calls confirm (or settle and rollback).

        before_stop runs under the guard while the previous release serves (for example: an engine takes its requests
        over); before_start while nothing does (for example: wait until the GPU memory is free). `at` is told each point
        that was passed: armed, bridged, stopped, defined, started. Raises SwitchLost when the guard fired meanwhile (a slow
        operator, a restarted host): a release is never started without it.
        """
        token = self.deadman.arm(self.restore_plan(previous), previous.id, deadline_s)
        log(f"dead man's switch armed: {previous.id} returns in {deadline_s:g} s unless the new release is confirmed")
        at("armed")
        if before_stop is not None:
            before_stop()
            self._require_guard(token, previous)
            at("bridged")
        stopped = time.monotonic()
        self.services.stop(self.unit)
        log(f"{self.unit} stopped")
        at("stopped")
        if before_start is not None:
            before_start()
            self._require_guard(token, previous)
        self.apply_definition(target)
        at("defined")
        self._require_guard(token, previous, redefined=True)
        self.services.start(self.unit)
        down = time.monotonic() - stopped
        self.store.point_current(target.id)
        at("started")
        status = self.services.status(self.unit)
        log(f"{self.unit} started with {target.id} (pid {status.main_pid}) after {down:.1f} s")
        return Switched(target.id, previous.id, token, stopped, down, status)

    def bring_back(
        self,
        target: Manifest,
        *,
        before_stop: Callable[[], None] = lambda: None,
        before_start: Callable[[], None] = lambda: None,
        before_confirm: Callable[[], None] = lambda: None,
        longer_s: float = 0.0,
        log: Log = lambda _line: None,
    ) -> None:
        """Make a release that is known to be good live again; returns when its process runs.

        The host is told first what is about to happen, and does the rest alone when the operator is lost on the way: a
        service that was stopped for its own return must not stay away. It waits for as long as a slow stop and
        what is done meanwhile (longer_s at most) may take: nothing may be started while the old process still holds the
        GPU. No switch may be armed (see settle).
        """
        patience_s = self.stop_timeout_s + longer_s + ALONE_AFTER_S
        token = self._tell_host(target, patience_s, log)
        before_stop()
        self.services.stop(self.unit)
        before_start()
        self.apply_definition(target)
        self.services.start(self.unit)
        self.store.point_current(target.id)
        before_confirm()
        if token and not self.confirm(token):
            log(f"{target.id} was brought back by the host itself, which had waited {patience_s:g} s for its operator")

    def _tell_host(self, target: Manifest, seconds: float, log: Log) -> str:
        """The token of a switch that brings `target` back, '' where none can be armed: a full disk keeps nothing down."""
        try:
            return self.deadman.arm(self.restore_plan(target), target.id, seconds)
        except HostError:
            raise
        except OrchestrateError as error:
            log(f"{target.id} is brought back without the host's own guard: {error}")
            return ""

    def _require_guard(self, token: str, previous: Manifest, *, redefined: bool = False) -> None:
        """What the host does after this look undoes our drop-in; what it did before is repeated here.

        redefined: what the host started may have been started with our definition, so it is started anew.
        """
        status = self.deadman.status()
        if status.state == "armed" and status.token == token:
            return
        self.apply_definition(previous)
        if redefined:
            self.services.stop(self.unit)
        self.services.start(self.unit)
        raise SwitchLost(
            f"host {self.store.transport.host!r}: the dead man's switch {status.state} while releases were being "
            "switched "
            f"({status.why or 'no reason given'}); {previous.id} serves again, so run again."
        )

    def apply_definition(self, manifest: Manifest) -> None:
        """Put the drop-in of a release in place (or take ours away); it takes effect at the next start."""
        override = self.override_for(manifest)
        if override is None:
            self.services.clear_override(self.unit)
        else:
            self.services.set_override(self.unit, override)

    def confirm(self, token: str) -> bool:
        """Disarm through a fresh login. False: the host had already gone back by itself."""
        return self.deadman.disarm(token).state == "disarmed"
