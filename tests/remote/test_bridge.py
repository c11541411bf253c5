"""What the host is told of an engine that stands in for a unit; tests/hosts_lab/test_bridge.py does it on real hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from orchestrator.hosts.inventory import HostConfig
from orchestrator.remote import systemd_text
from orchestrator.remote.bridge import Bridge
from orchestrator.remote.scripts import bridge as host_side
from orchestrator.transport.base import Transport
from tasks.serving import SIDE_PURPOSES, side_port

NO_HOST = cast(Transport, None)  # nothing here speaks to one
BRIDGE = Bridge(NO_HOST, service=30000, side=30005, unit="sglang@0-standin.service", start_timeout_s=1800)
FIREWALL = """\
table ip filter {
	chain INPUT {
		type filter hook input priority filter; policy %s;
%s	}
	chain FORWARD {
		type filter hook forward priority filter; policy drop;
	}
}
"""


def words(commands: tuple[tuple[str, ...], ...]) -> list[dict[str, Any]]:
    assert all(command[:2] == ("python3", "/x/bridge.py") for command in commands)
    return [json.loads(command[2]) for command in commands]


def test_the_ports_of_the_stand_in_are_no_other_side_engines() -> None:
    config = HostConfig.model_validate({"name": "h", "address": "h", "model": {"target": "/t", "draft": "/d"}})
    taken = {config.service.port, *(side_port(config, purpose) for purpose in SIDE_PURPOSES)}
    assert not taken & {config.stand_in_port, config.stand_in_port + 1}


def test_the_host_brings_the_stand_in_back_before_it_restarts_and_ends_it_last() -> None:
    (first,) = words(BRIDGE.before_restore("/x/bridge.py"))
    last = words(BRIDGE.after_restore("/x/bridge.py"))
    assert first["verb"] == "again"
    assert [one["verb"] for one in last] == ["hold", "hold", "hold", "end"]  # one command of the host may take 900 s
    assert sum(one.get("limit_s", 0) for one in last) >= 1800
    assert {one["table"] for one in (first, *last)} == {"orchestrate_sglang_0_standin"}
    (boot,) = words(BRIDGE.at_boot("/x/bridge.py"))
    assert boot["verb"] == "off"


def test_what_the_unit_runs_at_its_end_leaves_the_way_past_and_diverts_nothing() -> None:
    rules = BRIDGE.end_with_unit[-1]
    assert "tcp dport set 30000" in rules
    assert "dport 30000 delete @diverted_ip " in rules
    assert "dport 30000 update @diverted_ip " not in rules
    assert "add table" not in rules  # where there is none, none is made
    assert systemd_text.command(BRIDGE.end_with_unit).count("\n") == 0


def test_only_what_opens_a_connection_to_this_host_is_diverted() -> None:
    rules = host_side.diverted(json.loads(words_of("on")))
    remembering = [rule for rule in rules if "dport 30000 update @diverted" in rule]
    assert len(remembering) == 4  # from outside and from inside, for both families
    assert all("fib daddr type local" in rule and "== syn" in rule for rule in remembering)
    rewriting = [rule for rule in rules if "dport set 30005" in rule]
    assert len(rewriting) == 4
    assert all(" @diverted_ip" in rule for rule in rewriting)


def words_of(verb: str) -> str:
    return json.dumps({"verb": verb, "table": BRIDGE.table, "service": 30000, "side": 30005, "direct": 30006})


@pytest.mark.parametrize(
    ("policy", "rule", "named"),
    [("accept", "", False), ("drop", "", True), ("accept", "\t\ttcp dport 22 accept\n", True)],
)
def test_a_filter_of_incoming_connections_is_named(policy: str, rule: str, named: bool) -> None:
    said = host_side.filtering(FIREWALL % (policy, rule), 30005)
    assert ("nft chain INPUT) and might not let port 30005" in said) == named


def test_ports_beyond_the_last_one_are_refused_without_asking_the_host() -> None:
    assert "65536" in replace(BRIDGE, side=65535).why_not()
