"""The embedded host's own life: start once, survive, refuse a taken port, leave nothing behind."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.remote.process_driver import ProcessDriver
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport import embedded as host
from orchestrator.transport.ssh import opened


def test_a_second_call_finds_the_running_server(tmp_path: Path) -> None:
    try:
        first = host.ensure_embedded(tmp_path, "one")
        pid = json.loads((host.embedded_folder(tmp_path, "one") / "server.json").read_text())["pid"]
        assert host.ensure_embedded(tmp_path, "one") == first
        assert json.loads((host.embedded_folder(tmp_path, "one") / "server.json").read_text())["pid"] == pid
    finally:
        host.remove_embedded(tmp_path, "one")


def test_it_listens_on_loopback_only_and_its_keys_are_private(tmp_path: Path) -> None:
    try:
        settings = host.ensure_embedded(tmp_path, "one")
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        bound = {
            row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == settings.port
        }
        assert bound == {"0100007F"}
        for name in ("host_key", "user_key"):
            assert (host.embedded_folder(tmp_path, "one") / name).stat().st_mode & 0o077 == 0
    finally:
        host.remove_embedded(tmp_path, "one")


def test_a_taken_port_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}.*already in use"):
            host.ensure_embedded(tmp_path, "one", port=port)
    host.remove_embedded(tmp_path, "one")


def test_a_restarted_server_keeps_its_keys_and_the_operator_its_trust(tmp_path: Path) -> None:
    try:
        with opened(host.ensure_embedded(tmp_path, "one")) as transport:
            assert transport.run(["true"]).ok
        assert host.stop_embedded(tmp_path, "one")
        with opened(host.ensure_embedded(tmp_path, "one")) as transport:
            assert transport.run(["true"]).ok
    finally:
        host.remove_embedded(tmp_path, "one")


def test_its_environment_holds_nothing_of_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATOR_TOKEN", "canary-of-the-operator")
    try:
        with opened(host.ensure_embedded(tmp_path, "one")) as transport:
            said = transport.run(["env"]).stdout
    finally:
        host.remove_embedded(tmp_path, "one")
    assert "canary" not in said
    assert f"HOME={host.embedded_home(tmp_path, 'one')}" in said.splitlines()
    assert "PYTHONPATH" not in said


def test_services_outlive_the_server_and_removal_ends_everything(tmp_path: Path) -> None:
    with opened(host.ensure_embedded(tmp_path, "one")) as transport:
        driver = ProcessDriver(transport, str(host.embedded_home(tmp_path, "one")))
        driver.install(ServiceUnit("web", ("sh", "-c", "setsid sleep 4321 & sleep 4321")))
        driver.start("web")
        pid = driver.status("web").main_pid
    host.stop_embedded(tmp_path, "one")
    assert os.path.exists(f"/proc/{pid}")
    home = host.embedded_home(tmp_path, "one")
    assert len(host.processes_of(home)) >= 3
    removed = host.remove_embedded(tmp_path, "one")
    assert "service web" in removed
    assert host.processes_of(home) == []
    assert not (tmp_path / ".embedded").exists()
    assert host.remove_embedded(tmp_path, "one") == []
