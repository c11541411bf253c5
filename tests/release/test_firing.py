"""In the middle of a switch nothing may serve for a moment: whoever looks then is told what the host goes back to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from orchestrator.hosts.session import HostSession
from orchestrator.release.found import find_service
from orchestrator.release.settle import settle
from tasks.linear import found_release

CTX: Any = SimpleNamespace(run_id="r1")


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def arm(session: HostSession, seconds: float, pause_s: float) -> str:
    """A switch that keeps the service stopped for `pause_s` when it fires; the release that it brings back."""
    source = find_service(session.releases, session.services, session.unit, session.config.service.port)
    plan = session.activation().restore_plan(source)
    stop, start = plan.commands
    commands = (stop, ("sleep", str(pause_s)), start)
    session.deadman.arm(replace(plan, commands=commands, boot_commands=commands), source.id, seconds)
    return source.id


def test_while_the_host_goes_back_it_says_so_and_to_what(session: HostSession) -> None:
    source = arm(session, 0.5, 2.0)
    wait_until(lambda: not session.services.status(session.unit).running)
    assert session.deadman.status().state == "firing"
    assert found_release(CTX, session).id == source
    now = settle(session.activation(), patience_s=60)
    assert (now.deadman, now.running, now.current) == ("fired", True, source)


def test_a_switch_that_was_killed_while_nothing_served_is_brought_to_an_end(session: HostSession) -> None:
    source = arm(session, 600, 0.0)
    session.services.stop(session.unit)
    assert found_release(CTX, session).id == source
    now = settle(session.activation(), patience_s=60)
    assert (now.deadman, now.running, now.current) == ("fired", True, source)


def test_a_firing_that_a_restart_cut_short_is_fired_again(session: HostSession) -> None:
    source = arm(session, 0.5, 60.0)
    wait_until(lambda: session.deadman.status().state == "firing")
    session.transport.run(["pkill", "-KILL", "-f", f"[d]eadman.py wait {session.deadman.folder}"], check=True)
    wait_until(lambda: session.deadman.status().state == "armed")
    assert found_release(CTX, session).id == source
