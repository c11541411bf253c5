"""From a service without speculation to linear DFLASH, through the command line, with the real engine under systemd."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts_lab import engine
from tests.hosts_lab.lab import LabHost

QUICK = ("--set", "max_tokens=24", "--set", "confirm_s=600")


@pytest.fixture
def plain_host() -> Iterator[LabHost]:
    machine = engine.host("plain", dflash=False)
    try:
        yield machine
    finally:
        engine.remove(machine)


def orchestrate(home: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "orchestrator", *arguments, "--json", "--hosts", str(home / "hosts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr[-3000:]


def server_info(machine: LabHost) -> dict[str, Any]:
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{engine.PORT}/server_info', timeout=60).read().decode())"
    return dict(json.loads(machine.inside(f'/usr/bin/python3 -I -c "{code}"', timeout_s=90)))


def test_no_speculation_becomes_linear_dflash_and_goes_back_by_name(plain_host: LabHost, tmp_path: Path) -> None:
    models = f"/opt/models/{engine.PAIR}"
    (tmp_path / "hosts.yaml").write_text(
        f"hosts:\n  plain: {{address: {plain_host.address}, user: deploy, identity_file: {plain_host.key}, "
        "engine: sglang-cpu, root: /opt/ddtree, service: {start_timeout_s: 600}, "
        f"model: {{target: {models}/target, draft: {models}/draft}}}}\n"
    )
    (tmp_path / "known_hosts").write_text(plain_host.pinned_line())
    code, document, said = orchestrate(tmp_path, "run", "deploy-ddtree", "--yes", *QUICK)
    assert code == 1, said
    assert "deploy-dflash" in document["error"]  # named as what to do first
    code, document, said = orchestrate(tmp_path, "run", "deploy-dflash", "--yes", "--set", "block=12", *QUICK)
    assert code == 0, said
    tasks = {task["key"]: task for task in document["tasks"]}
    assert "8 of 8 greedy outputs equal" in tasks["prove-dflash"]["evidence"]["output"]
    info = server_info(plain_host)
    assert (info["speculative_algorithm"], info["speculative_num_draft_tokens"]) == ("DFLASH", 12)
    code, document, said = orchestrate(tmp_path, "releases")
    rows = {row["kind"]: row for row in document["releases"]}
    assert (rows["dflash"]["current"], rows["dflash"]["known_good"]) == (True, True)
    assert (rows["found"]["current"], rows["found"]["known_good"]) == (False, True)
    code, document, said = orchestrate(tmp_path, "plan", "deploy-ddtree", *QUICK)
    assert code == 0, said  # which starts from the release that is live now
    code, document, said = orchestrate(tmp_path, "rollback", "--to", rows["found"]["id"], "--yes")
    assert code == 0, said
    assert document["verified"] is True
    assert server_info(plain_host)["speculative_algorithm"] is None
