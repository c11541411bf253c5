"""Long work goes on without the connection that began it, and is found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.remote import longwork
from orchestrator.remote.longwork import LongWork
from orchestrator.remote.process_driver import ProcessDriver
from orchestrator.transport.base import CommandTimeout
from orchestrator.transport.ssh import SshTransport


def work(transport: SshTransport, driver: ProcessDriver, folder: Path, name: str) -> LongWork:
    return LongWork(transport, driver, str(folder), name)


def test_work_survives_the_connection_and_is_not_begun_twice(
    transport: SshTransport, driver: ProcessDriver, tmp_path: Path
) -> None:
    script = f"echo begun >> {tmp_path}/times; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo finished; exit 3"
    job = work(transport, driver, tmp_path, "survivor")
    job.start(["/bin/sh", "-c", script])
    transport.close()
    with pytest.raises(CommandTimeout, match="still runs"):
        job.wait(0.2)
    job.start(["/bin/sh", "-c", script])
    (tmp_path / "go").touch()
    lines: list[str] = []
    assert job.wait(30, on_line=lines.append) == 3
    assert lines == ["finished"]
    job.start(["/bin/sh", "-c", script])  # it has ended: its result stands
    assert job.wait(30) == 3
    assert (tmp_path / "times").read_text() == "begun\n"
    job.forget()
    assert job.exit_code() is None
    assert driver.definition(job.unit) is None


def test_new_lines_are_shown_also_when_the_log_is_longer_than_what_is_read_of_it(
    transport: SshTransport, driver: ProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longwork, "LINES", 5)
    script = f"seq 1 20; echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo why it failed; exit 2"
    job = work(transport, driver, tmp_path, "talker")
    job.start(["/bin/sh", "-c", script])
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line == "ready":
            (tmp_path / "go").touch()

    assert job.wait(30, on_line=on_line) == 2
    assert lines[-2:] == ["ready", "why it failed"]
    assert lines.count("ready") == 1
    job.forget()


def test_work_that_was_killed_has_no_result(transport: SshTransport, driver: ProcessDriver, tmp_path: Path) -> None:
    job = work(transport, driver, tmp_path, "killed")
    job.start(["sleep", "3600"])
    driver.stop(job.unit)
    with pytest.raises(OrchestrateError, match="without a result"):
        job.wait(10)
    job.forget()
