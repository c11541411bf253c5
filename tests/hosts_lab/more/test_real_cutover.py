"""A deployment that cuts over a real engine under systemd while clients stream from it, through the command line.

`-s` prints what a run that changes nothing takes on such a host, and what the clients saw.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts_lab import bridging, engine
from tests.hosts_lab.lab import LabHost
from tests.hosts_lab.more.test_dflash import orchestrate, server_info

QUICK = ("--set", "max_tokens=24", "--set", "confirm_s=600", "--set", "budgets=15", "--set", "pairs=3")


@pytest.fixture
def machine() -> Iterator[LabHost]:
    host = engine.host("live", listens="0.0.0.0")
    try:
        yield host
    finally:
        engine.remove(host)


def test_no_client_of_a_real_engine_is_refused_or_cut(machine: LabHost, tmp_path: Path) -> None:
    models = f"/opt/models/{engine.PAIR}"
    (tmp_path / "hosts.yaml").write_text(
        f"hosts:\n  live: {{address: {machine.address}, user: deploy, identity_file: {machine.key}, "
        "engine: sglang-cpu, root: /opt/ddtree, "
        "service: {start_timeout_s: 600, stand_in: always, drain_timeout_s: 120}, "
        f"model: {{target: {models}/target, draft: {models}/draft}}}}\n"
    )
    (tmp_path / "known_hosts").write_text(machine.pinned_line())
    code, document, said = orchestrate(tmp_path, "run", "deploy-ddtree", "--yes", *QUICK)
    assert code in (0, 9), said
    began = time.monotonic()
    code, document, said = orchestrate(tmp_path, "run", "deploy-ddtree", "--yes", *QUICK)
    print(f"a run that changes nothing: {time.monotonic() - began:.2f} s, exit {code}")
    adopt = ("--set", "decide=adopt", "--reason", "a test of the cut-over")
    with bridging.clients(machine, tmp_path) as done:
        code, document, said = orchestrate(tmp_path, "run", "deploy-ddtree", "--yes", *QUICK, *adopt)
        seen = done()
    assert code == 0, said
    cutover = next(task for task in document["tasks"] if task["key"] == "cutover")
    print(f"cut-over: {cutover['evidence']['output']}")
    for name, what in zip(("inside", "outside"), seen, strict=True):
        print(f"{name}: {what['tries']} connections, {what['requests']} streams, cut {what['cut']}")
    assert [what["refused"] for what in seen] == [[], []]
    assert [what["cut"] for what in seen] == [[], []]
    assert server_info(machine)["speculative_algorithm"] == "DDTREE"
    code, document, said = orchestrate(tmp_path, "rollback", "--yes")
    assert code == 0, said
    assert server_info(machine)["speculative_algorithm"] == "DFLASH"
