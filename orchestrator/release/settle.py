"""What is true on a host now, and how an interrupted switch of releases is brought to an end before anything else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import ExitCode, OrchestrateError
from orchestrator.release.activate import Activation
from orchestrator.release.deadman import DeadmanState

POLL_S = 0.2


class RollbackUnverified(OrchestrateError):
    """The host tried to go back by itself and not every step worked."""

    exit_code = ExitCode.ROLLBACK_UNVERIFIED


@dataclass(frozen=True)
class Situation:
    """serving: the release that the unit's definition names (a `found-…` one when there is no drop-in of ours)."""

    serving: str | None
    current: str | None
    running: bool
    deadman: DeadmanState

    @property
    def settled(self) -> bool:
        return self.deadman not in ("armed", "firing", "failed") and self.serving == self.current


def look(activation: Activation) -> Situation:
    """Ask the host; changes nothing."""
    store = activation.store
    definition = activation.services.definition(activation.unit)
    current = store.current()
    serving: str | None = None
    if definition is not None and definition.overridden:
        serving = definition.release or None
    elif definition is not None:
        serving = _original(activation, current)
    return Situation(
        serving=serving,
        current=current,
        running=activation.services.status(activation.unit).running,
        deadman=activation.deadman.status().state,
    )


def settle(
    activation: Activation, *, patience_s: float = 1800.0, log: Callable[[str], None] = lambda _: None
) -> Situation:
    """End what an earlier run left open: an armed switch is fired (the previous release returns), a firing one is awaited.

    A release that serves without ever having been confirmed is taken back too, and an engine that stood in goes. Also repairs a `current` link that names another release than the one that serves. Raises RollbackUnverified when the
    host could not go back by itself: a person has to look.
    """
    status = activation.deadman.status()
    if status.state == "armed" and not status.begun and _never_switched(activation, status.restores):
        log("an earlier run armed the dead man's switch and got no further: the service goes on")
        activation.deadman.disarm(status.token)
    elif status.state == "armed":
        log("an earlier run left the dead man's switch armed: the previous release is brought back now")
        activation.deadman.fire(status.token)
    deadline = time.monotonic() + patience_s
    while (status := activation.deadman.status()).state == "firing":
        if time.monotonic() > deadline:
            raise RollbackUnverified(_where(activation, "the dead man's switch has been firing for too long"))
        time.sleep(POLL_S)
    now = look(activation)
    if status.state == "failed" and not (now.running and now.serving == now.current):
        bad = "; ".join(f"{step['step']}: {step['error']}" for step in status.steps if not step["ok"])
        raise RollbackUnverified(_where(activation, f"going back by itself failed ({bad})"))
    if status.state == "fired" and status.restores and now.serving not in (status.restores, None):
        # A start that crossed the firing: what serves is not guarded and was never confirmed.
        log(f"{now.serving} serves unconfirmed after the host had gone back: {status.restores} is brought back")
        activation.bring_back(activation.store.read(status.restores), log=log)
        now = look(activation)
    if now.serving is not None and now.serving != now.current:
        log(f"`current` named {now.current}, but {now.serving} serves: the link is corrected")
        activation.store.point_current(now.serving)
    if not now.running:
        log(f"{activation.unit} is not running: it is started")
        activation.services.start(activation.unit)
    activation.end_bridge(log)
    return look(activation)


def _never_switched(activation: Activation, restores: str | None) -> bool:
    """The release that firing would bring back serves; a switch stops the unit before it changes the definition."""
    now = look(activation)
    return now.running and now.serving is not None and now.serving == now.current == restores


def _original(activation: Activation, current: str | None) -> str | None:
    """The found release behind an undecorated unit: the current one, or what the current one was built from."""
    store, name = activation.store, current
    while name is not None and store.exists(name):
        manifest = store.read(name)
        if manifest.kind == "found":
            return name
        name = manifest.source_release
    return None


def _where(activation: Activation, what: str) -> str:
    return f"host {activation.store.transport.host!r}, {activation.unit}: {what}; look at the unit there and start it by hand."
