"""Services under the supervisor script, on a real embedded host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.remote.process_driver import ProcessDriver
from orchestrator.remote.services import Override, ServiceUnit
from orchestrator.transport.ssh import SshTransport
from tests.ports import free_ports

SERVE = (
    "import socket, subprocess, time\n"
    "s = socket.create_server(('127.0.0.1', {port}))\n"
    "subprocess.Popen(['setsid', 'sleep', '86399'])\n"  # a child that leaves the session, as workers may
    "print('listening', flush=True)\n"
    "time.sleep(3600)\n"
)


def until(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    """A zombie that nobody reaped is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def service(driver: ProcessDriver, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name[:60]
    yield name
    driver.remove(name)


def test_start_stop_and_nothing_left(driver: ProcessDriver, service: str) -> None:
    port = free_ports()
    driver.install(ServiceUnit(service, ("python3", "-c", SERVE.format(port=port)), stop_timeout_s=5))
    driver.start(service)
    until(lambda: listening(port))
    status = driver.status(service)
    assert status.running
    assert abs(status.since - time.time()) < 30
    assert driver.logs(service) == ["listening"]
    driver.start(service)  # a second start is no restart
    assert driver.status(service).main_pid == status.main_pid
    children = _with_word("86399")
    assert children
    driver.stop(service)
    assert not listening(port)
    assert not alive(status.main_pid)
    assert not [pid for pid in children if alive(pid)]
    assert driver.status(service).active == "inactive"


def test_a_process_that_ignores_sigterm_is_killed(driver: ProcessDriver, service: str) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(999)"
    )
    driver.install(ServiceUnit(service, ("python3", "-c", code), stop_timeout_s=0.5))
    driver.start(service)
    until(lambda: driver.logs(service) == ["deaf"])
    pid = driver.status(service).main_pid
    driver.stop(service)
    assert not alive(pid)


def test_a_crash_is_restarted_and_a_crash_loop_ends_as_failed(driver: ProcessDriver, service: str) -> None:
    driver.install(ServiceUnit(service, ("sleep", "3600"), restart_s=0.05))
    driver.start(service)
    first = driver.status(service).main_pid
    os.kill(first, signal.SIGKILL)
    until(lambda: driver.status(service).running and driver.status(service).main_pid != first)
    assert driver.status(service).restarts == 1
    driver.stop(service)
    driver.install(ServiceUnit(service, ("sh", "-c", "echo broken; exit 3"), restart_s=0.05))
    with contextlib.suppress(OrchestrateError):  # whether start sees the loop's end depends on timing
        driver.start(service)
    until(lambda: driver.status(service).active == "failed")
    assert driver.status(service).exit_code == 3
    assert driver.logs(service)[-1] == "broken"


def test_a_program_that_does_not_exist_fails_with_its_name(driver: ProcessDriver, service: str) -> None:
    driver.install(ServiceUnit(service, ("/no/such/program",)))
    with pytest.raises(OrchestrateError, match="/no/such/program"):
        driver.start(service)


def test_an_override_replaces_the_command_and_clearing_it_brings_the_unit_back(
    driver: ProcessDriver, service: str, tmp_path: Path
) -> None:
    out = tmp_path / "env"
    write = ("sh", "-c", f'echo "$KEPT $GONE $SECRET" > {out}; exec sleep 3600')
    driver.install(ServiceUnit(service, ("sleep", "3601"), env={"KEPT": "kept", "GONE": "gone"}))
    before = driver.definition(service)
    override = Override(write, unset_env=("GONE",), secret_env={"SECRET": "quiet"}, release="ddtree-000000000000")
    driver.set_override(service, override)
    driver.start(service)
    until(lambda: out.exists() and out.read_text() == "kept  quiet\n")
    now = driver.definition(service)
    assert now is not None
    assert (now.overridden, now.release, now.argv) == (True, "ddtree-000000000000", write)
    assert not any("quiet" in text for text in now.texts.values())
    assert (Path(driver.folder(service)) / "secret.json").stat().st_mode & 0o077 == 0
    driver.clear_override(service)
    assert driver.definition(service) == before
    driver.restart(service)
    assert Path(f"/proc/{driver.status(service).main_pid}/cmdline").read_bytes() == b"sleep\x003601\0"


def test_a_lost_supervisor_is_reported_and_stop_still_ends_the_service(driver: ProcessDriver, service: str) -> None:
    driver.install(ServiceUnit(service, ("sleep", "3600")))
    driver.start(service)
    status = driver.status(service)
    supervisor = json.loads((Path(driver.folder(service)) / "state.json").read_text())["supervisor"]
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not alive(supervisor))
    assert "without its supervisor" in driver.status(service).detail
    assert driver.status(service).main_pid == status.main_pid
    driver.stop(service)
    assert not alive(status.main_pid)


def test_a_service_survives_the_connection_that_started_it(
    driver: ProcessDriver, service: str, transport: SshTransport
) -> None:
    driver.install(ServiceUnit(service, ("sleep", "3600")))
    driver.start(service)
    pid = driver.status(service).main_pid
    transport.close()
    assert driver.status(service).main_pid == pid


def _with_word(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
