"""A job of somebody else on the accelerator: named before anything begins, and never ended. The host's nvidia-smi is a script."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.session import HostSession
from orchestrator.recent import Recent
from orchestrator.remote.services import ServiceUnit
from tasks.preflight import AcceleratorFree

CAPTURED = Path(__file__).parents[1] / "inspect" / "fixtures" / "nvidia" / "h200_driver_580.json"
APPS = "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"


class Smi:
    """The tool as it answered on a real machine, with the processes that a test says."""

    def __init__(self, folder: Path) -> None:
        self.apps = folder / "apps"
        gpus = json.loads(CAPTURED.read_text())["commands"]["gpus"]["out"]
        (folder / "gpus").write_text(gpus)
        self.uuid = next(cell.strip() for cell in gpus.split(",") if cell.strip().startswith("GPU-"))
        shown = {name: shlex.quote(str(folder / name)) for name in ("gpus", "apps")}
        tool = folder / "nvidia-smi"
        tool.write_text(
            f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {shown["gpus"]};; --query-compute*) cat {shown["apps"]};; esac\n'
        )
        tool.chmod(0o755)
        self.hold()

    def hold(self, *pids: int) -> None:
        self.apps.write_text(APPS + "".join(f"{self.uuid}, {pid}, python3, 2048\n" for pid in pids))


@pytest.fixture
def smi(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Smi:
    folder = tmp_path_factory.mktemp("smi")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Smi(folder)


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def service(session: HostSession, serving_venv: Path) -> int:
    """The pid of the host's service, started as SGLang is."""
    site = next((serving_venv / "lib").glob("python3*")) / "site-packages" / "sglang"
    (site / "launch_server.py").write_text((site / "serve.py").read_text())
    python, port = str(serving_venv / "bin" / "python"), str(session.config.service.port)
    session.services.install(ServiceUnit(session.unit, (python, "-m", "sglang.launch_server", "--port", port)))
    session.services.restart(session.unit)
    return session.services.status(session.unit).main_pid


def test_a_foreign_job_ends_the_run_before_anything_begins_and_goes_on(
    smi: Smi, session: HostSession, service: int, job: subprocess.Popen[bytes]
) -> None:
    ctx: Any = SimpleNamespace(host=session, fact=lambda *_: None, log=lambda _: None)
    smi.hold(service, job.pid)
    with pytest.raises(OrchestrateError, match=rf"1 foreign job\(s\) hold GPU memory on 'local': .*pid {job.pid}"):
        AcceleratorFree().apply(ctx)
    assert job.poll() is None
    assert session.services.status(session.unit).main_pid == service
    smi.hold(service)
    session.recent = Recent()  # what was seen a moment ago is looked up anew
    assert AcceleratorFree().apply(ctx)["gpus"] == 1
