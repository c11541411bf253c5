"""GPU facts from nvidia-smi's own output; the program on the host is a script with recorded answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.remote.gpus import foreign_holders, gpus, holders, wait_free
from orchestrator.transport.embedded import ensure_embedded, remove_embedded
from orchestrator.transport.ssh import SshTransport

GPU_ROWS = (
    "0, GPU-aaa, NVIDIA H200, 143771, 1024, 12, 9.0, 570.1\n1, GPU-bbb, NVIDIA H200, 143771, 0, [N/A], 9.0, 570.1\n"
)


class FakeSmi:
    """Puts an `nvidia-smi` first in the PATH of an embedded host; what it answers lies in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {folder}/gpu;; *) cat {folder}/apps;; esac\n'
        (folder / "nvidia-smi").write_text(script)
        (folder / "nvidia-smi").chmod(0o755)
        (folder / "gpu").write_text(GPU_ROWS)
        (folder / "apps").write_text("")

    def apps(self, *pids: int) -> None:
        (self.folder / "apps").write_text("".join(f"GPU-bbb, {pid}, 2048\n" for pid in pids))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return FakeSmi(tmp_path)


@pytest.fixture
def host(smi: FakeSmi, tmp_path: Path) -> Iterator[SshTransport]:
    link = SshTransport(ensure_embedded(tmp_path, "gpu"))
    try:
        yield link
    finally:
        link.close()
        remove_embedded(tmp_path, "gpu")


def test_gpus_are_read_and_missing_figures_are_zero(host: SshTransport) -> None:
    first, second = gpus(host)
    assert (first.index, first.arch, first.memory_total_mib, first.utilization) == (0, "sm_90", 143771, 12)
    assert second.utilization == 0


def test_a_host_without_the_program_has_no_gpus(transport: SshTransport) -> None:
    if transport.run(["nvidia-smi"]).ok:
        pytest.fail("this test is for a machine without a GPU")
    assert gpus(transport) == []
    assert holders(transport) == []


def test_foreign_jobs_are_named_and_ours_are_not(host: SshTransport, smi: FakeSmi) -> None:
    training = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    script = "sleep 3601 & echo $!; wait"
    ours = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    try:
        assert ours.stdout is not None
        child = int(ours.stdout.readline())
        smi.apps(training.pid, child)
        (foreign,) = foreign_holders(host, [ours.pid])
        assert (foreign.gpu, foreign.pid) == (1, training.pid)
        assert "sleep 3600" in foreign.described
    finally:
        training.kill()
        os.killpg(ours.pid, 9)
        training.wait()
        ours.wait()


def test_stopped_means_that_the_memory_is_free_again(host: SshTransport, smi: FakeSmi) -> None:
    smi.apps(4_000_000)
    with pytest.raises(OrchestrateError, match=r"not freed.*pid 4000000"):
        wait_free(host, [4_000_000], 0.1)
    smi.apps()
    wait_free(host, [4_000_000], 5)
