"""An engine of the coming release answers on a side port while the unit restarts, so that no connection is refused."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Change, TaskContext
from orchestrator.hosts import readiness
from orchestrator.hosts.session import HostSession
from orchestrator.release.manifest import Manifest
from orchestrator.remote.bridge import Bridge
from tasks.launch import on_port
from tasks.serving import SideEngine, remove_side, start_side

POLL_S = 0.3
QUIET = 2  # looks in a row without a connection
OPEN = ("armed", "firing")  # states of the dead man's switch in which the host still needs what stands in


def why_not(session: HostSession) -> str:
    """Why connections will be refused while the unit restarts, '' where an engine can stand in. Changes nothing."""
    if session.config.service.stand_in == "never":
        return "service.stand_in is `never`"
    if session.bridge is None:
        return "only root on a systemd host can send them elsewhere"
    return session.bridge.why_not()


def stand_in_changes(session: HostSession, why: str, memory: str) -> tuple[Change, ...]:
    """What a plan says of the stand-in; `why` as why_not gives it."""
    bridge = session.bridge
    if bridge is None or why:
        return ()
    does = (
        f"an engine of the release answers for {session.unit} on port {bridge.side} while that restarts: started and "
        f"proven first, reached by a redirection of new connections (nft table {bridge.table}), removed after"
    )
    needs = (Change("process", bridge.unit, f"needs {memory}, beside the live service"),) if memory else ()
    return (Change("service", bridge.unit, does), *needs)


@dataclass
class StandIn:
    """What answers while a unit restarts; without a bridge nothing does, and `why` says the reason."""

    ctx: TaskContext
    session: HostSession
    bridge: Bridge | None
    why: str = ""

    @property
    def port(self) -> int:
        """Where the unit itself is reached meanwhile."""
        return self.bridge.direct if self.bridge else self.session.config.service.port

    @property
    def drain_s(self) -> float:
        """How much longer the switch takes because connections may come to their end first."""
        return self.session.config.service.drain_timeout_s if self.bridge else 0.0

    def how(self) -> str:
        return f"an engine on port {self.bridge.side} stood in" if self.bridge else f"nothing stood in: {self.why}"

    def take_over(self) -> None:
        """New connections reach the stand-in from here on, and those of the service have come to their end."""
        if self.bridge is None:
            return
        unit = self.session.unit
        try:
            self.bridge.on()
            if not readiness.port_is_taken(self.session, self.bridge.direct):
                raise OrchestrateError(f"{unit} is not reached past the redirection on this host.")
        except OrchestrateError as error:
            self._give_up(f"the redirection does not work ({error})")
            return
        self.ctx.log(f"{self.bridge.unit} answers for {unit}: new connections reach port {self.bridge.side}")
        self._drain(unit, self.session.config.service.port)

    def give_back(self) -> None:
        """New connections reach the unit again."""
        if self.bridge is not None:
            self.bridge.lift()
            self.ctx.log(f"{self.session.unit} answers by itself again")

    def dismiss(self) -> None:
        """The stand-in goes once its last connections have ended."""
        if self.bridge is not None:
            self._drain(self.bridge.unit, self.bridge.side)
            remove(self.session)

    def _give_up(self, why: str) -> None:
        self.ctx.log(f"connections are refused while {self.session.unit} restarts: {why}")
        remove(self.session)
        self.bridge, self.why = None, why

    def _drain(self, unit: str, port: int) -> None:
        """A limit that is over is no failure: what is cut then would have been cut at once without a stand-in."""
        assert self.bridge is not None
        limit, started, quiet = self.drain_s, time.monotonic(), 0
        while quiet < QUIET:
            left = self.bridge.connections(port)
            quiet = 0 if left else quiet + 1
            waited = time.monotonic() - started
            if left and waited > limit:
                self.ctx.log(f"{left} connections of {unit} are cut, open for more than {limit:g} s")
                return
            self.ctx.check_cancelled()
            self.ctx.progress(f"{left} connections are still open on {unit}", waited, limit)
            time.sleep(POLL_S)


def stand_in_left(session: HostSession) -> bool:
    """Whether an attempt that was cut short left its stand-in on the host."""
    return session.bridge is not None and session.services.definition(session.bridge.unit) is not None


def remove(session: HostSession) -> None:
    """No stand-in and no redirection, whatever an attempt left; the service must answer by itself, or nothing would."""
    if session.bridge is not None:
        session.bridge.end(drain_s=0.0)
        remove_side(session, session.bridge.unit)


@contextlib.contextmanager
def standing_in(
    ctx: TaskContext, session: HostSession, target: Manifest, prove: Callable[[int], object], *, resumed: bool
) -> Iterator[StandIn]:
    """A proven engine of `target` beside the service during the block. After a failure in which the host still has to
    go back it stays, since it answers until then; the way back takes it away.

    resumed: the switch was made by an attempt that was cut short, and what stood in then may still do so.
    """
    stand_in = _found(ctx, session) if resumed else _started(ctx, session, target, prove)
    try:
        yield stand_in
    except BaseException:
        with contextlib.suppress(OrchestrateError):
            if session.deadman.status().state not in OPEN:
                remove(session)
        raise
    stand_in.dismiss()


def _found(ctx: TaskContext, session: HostSession) -> StandIn:
    if session.bridge is not None and session.bridge.state() != "off":
        return StandIn(ctx, session, session.bridge)
    remove(session)
    return StandIn(ctx, session, None, "the switch was made by an attempt that was interrupted")


def _started(ctx: TaskContext, session: HostSession, target: Manifest, prove: Callable[[int], object]) -> StandIn:
    why, bridge = ("", None) if session.config.router.enabled else (why_not(session), session.bridge)
    if bridge is None or why:
        if why:
            ctx.log(f"connections are refused while {session.unit} restarts: {why}")
        return StandIn(ctx, session, None, why or "the other replicas serve")
    stand_in = StandIn(ctx, session, bridge)
    engine = SideEngine(bridge.unit, on_port(target.launch, bridge.side), bridge.side, after_stop=bridge.end_with_unit)
    try:
        start_side(ctx, engine)
    except readiness.EngineStartError as error:
        stand_in._give_up(str(error))
        return stand_in
    try:
        prove(bridge.side)
    except BaseException:
        remove(session)
        raise
    return stand_in
