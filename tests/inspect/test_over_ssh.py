"""The same inspection over a real SSH connection."""

from __future__ import annotations

from pathlib import Path

from orchestrator.transport.embedded import ensure_embedded, remove_embedded
from orchestrator.transport.ssh import SshTransport
from tasks.inspecting import Scope, inspect_host
from tests.inspect.conftest import Start, make_package, make_venv


def test_inspect_over_ssh(tmp_path: Path, start: Start, free_port: int, scratch: Path) -> None:
    python, site = make_venv(scratch / "service")
    package = make_package(site, "0.5.20")
    start(
        [str(python), "-m", "sglang.launch_server", "--port", str(free_port), "--speculative-algorithm", "DFLASH"],
        free_port,
    )
    settings = ensure_embedded(tmp_path / "state", "inspected")
    transport = SshTransport(settings)
    try:
        found = inspect_host(
            transport, Scope("inspected", port=free_port, roots=(str(scratch),), systemd=False)
        ).to_json()
    finally:
        transport.close()
        remove_embedded(tmp_path / "state", "inspected")
    assert found["sglang"]["package_path"] == str(package)
    assert found["sglang"]["service"]["algorithm"] == "DFLASH"
    assert found["setting"] == {}  # the service names no model that exists
    assert any(note.startswith("the server") for note in found["not_seen"]) is False
