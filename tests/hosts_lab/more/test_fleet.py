"""A graph over a group of real hosts through the command line: stops where one is gone, goes on when it is back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.release import wheels
from tests.hosts_lab import scene
from tests.hosts_lab.lab import LabHost

NAMES = ("fleet-a", "fleet-b", "fleet-c")


def pair() -> dict[str, bytes]:
    """A trained pair under /models, so that inspect has models to judge."""
    source = wheels.engine_folder() / "models" / "tiny-dense"
    files = [path for kind in ("target", "draft") for path in (source / kind).iterdir() if path.is_file()]
    return {f"/models/{path.relative_to(source)}": path.read_bytes() for path in files}


@pytest.fixture
def machines() -> Iterator[list[LabHost]]:
    hosts: list[LabHost] = []
    try:
        hosts.extend(scene.host(name, pair()) for name in NAMES)
        yield hosts
    finally:
        for host in hosts:
            host.down()


def inventory(machines: list[LabHost], home: Path) -> None:
    rows = "".join(
        f"  {machine.name}: {{address: {machine.address}, user: deploy, identity_file: {machine.key}, "
        "connect_timeout_s: 5, model: {target: /models/target, draft: /models/draft}}\n"
        for machine in machines
    )
    (home / "hosts.yaml").write_text(f"hosts:\n{rows}groups: {{all: [{', '.join(NAMES)}]}}\n")
    (home / "known_hosts").write_text("".join(machine.pinned_line() for machine in machines))


def orchestrate(home: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "orchestrator", *arguments, "--json", "--hosts", str(home / "hosts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def test_a_group_stops_at_a_lost_host_and_goes_on_from_there(machines: list[LabHost], tmp_path: Path) -> None:
    inventory(machines, tmp_path)
    machines[1].link(False)
    code, document = orchestrate(tmp_path, "run", "inspect", "--host", "group:all", "--run-id", "tour")
    assert code == 3, document
    assert [row["state"] for row in document["hosts"]] == ["completed", "failed", "not started"]
    assert "fleet-b" in document["error"]
    machines[1].link(True)
    first = document["hosts"][0]
    code, document = orchestrate(tmp_path, "run", "inspect", "--resume", "tour", "--at-once", "2")
    assert code == 0, document
    assert [row["state"] for row in document["hosts"]] == ["completed"] * 3
    assert document["hosts"][0] == first  # done before, left alone
    code, shown = orchestrate(tmp_path, "status", "tour")
    assert (code, [row["run_id"] for row in shown["hosts"]]) == (0, [f"tour.{name}" for name in NAMES])
