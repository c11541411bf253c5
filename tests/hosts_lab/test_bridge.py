"""A unit without a router restarts with a slow engine, and clients inside and outside of the host notice nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.clean import clean_host
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.store.store import open_store
from tasks.rollback import RollBack
from tasks.standin import why_not
from tasks.takeover import KEY
from tests.hosts_lab import bridging
from tests.hosts_lab.bridging import STANDIN
from tests.hosts_lab.lab import LabHost
from tests.hosts_lab.test_systemd import until

INFO = "http://127.0.0.1:30000/server_info"


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LabHost]:
    host = bridging.host(f"b{abs(hash(request.node.nodeid)) % 100000}")
    try:
        (tmp_path / "known_hosts").write_text(host.pinned_line())
        until(lambda: algorithm(host) == "DFLASH")
        yield host
    finally:
        host.down()


@contextlib.contextmanager
def connected(machine: LabHost, tmp_path: Path, **service: object) -> Iterator[HostSession]:
    """A session; without a usable nft the test has nothing to say."""
    with open_session(bridging.config(machine, **service), tmp_path) as session:
        why = why_not(session)
        if "nft refuses" in why:
            pytest.skip(f"this kernel cannot redirect: {why}")
        yield session


def algorithm(machine: LabHost) -> str | None:
    code = f"import urllib.request as u; print(u.urlopen('{INFO}', timeout=5).read().decode())"
    said = machine.inside(f'/usr/bin/python3 -I -c "{code}" 2>/dev/null || true').strip()
    return str(json.loads(said)["speculative_algorithm"]) if said else None


def tables(machine: LabHost) -> str:
    return machine.inside("nft list ruleset").strip()


def active(machine: LabHost, unit: str) -> str:
    return machine.inside(f"systemctl is-active {unit} || true").strip()


def nothing(_line: str) -> None:
    """Log lines that nobody reads."""


def unharmed(seen: list[dict[str, Any]]) -> None:
    for one in seen:
        assert one["tries"] > 100, one
        assert one["requests"] > 4, one
        assert (one["refused"], one["cut"]) == ([], []), one


def on_line(text: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Acts once, when a log line holds the text."""
    left = [text]

    def told(line: str) -> None:
        if left and left[0] in line:
            left.clear()
            act()

    return told


def test_no_client_notices_that_the_unit_restarts(machine: LabHost, tmp_path: Path) -> None:
    with connected(machine, tmp_path) as session, bridging.clients(machine, tmp_path) as done:
        ctx = bridging.cut_over(session, nothing)
        unharmed(done())
        output = ctx.outputs[KEY]
        assert output["refused_s"] == 0.0
        assert output["down_s"] > bridging.WARM_UP_S  # the unit itself was away as long as its engine takes
        assert "port 30005 stood in" in output["bridged"]
        assert "connections refused for 0.00 s" in ctx.outputs["evidence"]
        assert algorithm(machine) == "DDTREE"
        assert session.deadman.status().state == "disarmed"
        assert not [line for line in ctx.lines if "are cut" in line]
        assert tables(machine) == ""
        assert machine.inside("ls /etc/systemd/system").split().count(STANDIN) == 0
        assert session.services.definition(STANDIN) is None


def test_a_rollback_is_not_noticed_either(machine: LabHost, tmp_path: Path) -> None:
    with connected(machine, tmp_path) as session, open_store(f"sqlite:///{tmp_path}/state.db") as store:
        ctx = bridging.cut_over(session, nothing)
        session.releases.mark_known_good(ctx.outputs[KEY]["previous"], {"by": "this test"})
        with bridging.clients(machine, tmp_path) as done:
            back = bridging.Watcher(session, store=store)
            RollBack(None).apply(back)  # type: ignore[arg-type]
            unharmed(done())
        assert any("answers for sglang.service" in line for line in back.lines)
        assert session.deadman.status().state == "disarmed"
        assert (algorithm(machine), tables(machine), session.services.definition(STANDIN)) == ("DFLASH", "", None)


@pytest.mark.parametrize("hold", ["answers for sglang.service", "sglang.service started with", "answers by itself"])
def test_an_operator_who_dies_meanwhile_leaves_the_old_release_and_no_table(
    machine: LabHost, tmp_path: Path, hold: str
) -> None:
    with connected(machine, tmp_path) as session, bridging.clients(machine, tmp_path) as done:
        with bridging.operator(session.config, tmp_path, hold) as process:
            assert "tcp dport set 30005" in tables(machine)
            process.kill()
        until(lambda: session.deadman.status().state == "fired", 90)
        assert algorithm(machine) == "DFLASH"
        assert [one["refused"] for one in done()] == [
            [],
            [],
        ]  # the old release's requests are cut, as its unit restarts
        assert tables(machine) == ""
        until(lambda: active(machine, STANDIN) == "inactive")
        ctx = bridging.cut_over(session, nothing)  # a later run goes on as if nothing had been
        assert ctx.outputs[KEY]["refused_s"] == 0.0
        assert (algorithm(machine), tables(machine)) == ("DDTREE", "")


def test_what_an_interrupted_attempt_left_is_taken_up(machine: LabHost, tmp_path: Path) -> None:
    with connected(machine, tmp_path) as session, bridging.clients(machine, tmp_path) as done:
        with bridging.operator(session.config, tmp_path, "sglang.service started with") as process:
            process.kill()
        ctx = bridging.cut_over(session, nothing)
        assert any("its proof follows" in line for line in ctx.lines)
        unharmed(done())
        assert (algorithm(machine), tables(machine)) == ("DDTREE", "")
        assert session.services.definition(STANDIN) is None


def test_a_stand_in_that_dies_takes_the_redirection_with_it(machine: LabHost, tmp_path: Path) -> None:
    with connected(machine, tmp_path) as session:

        def kill() -> None:
            machine.inside(f"systemctl kill -s KILL {STANDIN}")
            until(lambda: session.bridge is not None and session.bridge.state() == "lifted")
            assert algorithm(machine) is None  # nothing serves for as long as the unit starts

        ctx = bridging.cut_over(session, on_line("sglang.service started with", kill))
        assert (algorithm(machine), tables(machine)) == ("DDTREE", "")
        assert ctx.outputs[KEY]["refused_s"] > 0.0


def test_a_release_that_answers_wrongly_is_refused_before_anything_is_restarted(
    machine: LabHost, tmp_path: Path
) -> None:
    with connected(machine, tmp_path) as session:
        pid = session.services.status(session.unit).main_pid
        with pytest.raises(OrchestrateError, match="recorded tokens"):
            bridging.cut_over(session, nothing, "--wrong")
        assert session.services.status(session.unit).main_pid == pid
        assert session.deadman.status().state == "never armed"
        assert (tables(machine), session.services.definition(STANDIN)) == ("", None)


def test_a_host_without_nft_is_switched_as_before_and_says_why(machine: LabHost, tmp_path: Path) -> None:
    machine.inside("mv /usr/sbin/nft /usr/sbin/nft.away")
    with connected(machine, tmp_path) as session:
        ctx = bridging.cut_over(session, nothing)
        (said,) = [line for line in ctx.lines if "are refused" in line]
        assert said == "connections are refused while sglang.service restarts: the host has no nft program"
        assert ctx.outputs[KEY]["refused_s"] > 1.0
        assert algorithm(machine) == "DDTREE"


def test_a_packet_filter_that_might_drop_the_side_port_is_named(machine: LabHost, tmp_path: Path) -> None:
    with connected(machine, tmp_path) as session:
        before = tables(machine)
        assert (why_not(session), tables(machine)) == ("", before)  # looking changes nothing
        machine.inside("nft add table inet own; nft 'add chain inet own in { type filter hook input priority 0; }'")
        assert why_not(session) == ""
        machine.inside("nft add rule inet own in tcp dport 9 drop")
        assert "nft chain in) and might not let port 30005 through" in why_not(session)
    with connected(machine, tmp_path, stand_in="always") as session:
        assert why_not(session) == ""
    with connected(machine, tmp_path, stand_in="never") as session:
        assert "never" in why_not(session)


def test_clean_takes_a_left_over_away(machine: LabHost, tmp_path: Path) -> None:
    with connected(machine, tmp_path) as session:
        with bridging.operator(session.config, tmp_path, "answers for sglang.service") as process:
            process.kill()
        with open_store(f"sqlite:///{tmp_path}/state.db") as store:
            assert f"the unit {STANDIN}" in clean_host(session.config, tmp_path, store)
        assert (algorithm(machine), tables(machine), active(machine, STANDIN)) == ("DFLASH", "", "inactive")
