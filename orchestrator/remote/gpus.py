"""The GPUs of a host and what holds them: named before a start, waited for after a stop, never killed."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.errors import OrchestrateError
from orchestrator.remote.processes import ProcessFacts, processes
from orchestrator.transport.base import Transport

GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "compute_cap",
    "driver_version",
)
APP_FIELDS = ("gpu_uuid", "pid", "used_memory")
POLL_S = 1.0


@dataclass(frozen=True)
class Gpu:
    """Memory in MiB, utilisation in percent; arch like sm_90."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    memory_used_mib: int
    utilization: int
    arch: str
    driver: str


@dataclass(frozen=True)
class GpuHolder:
    """A process with memory on a GPU; `process` is None when its facts may not be read."""

    gpu: int
    pid: int
    memory_mib: int
    process: ProcessFacts | None

    @property
    def described(self) -> str:
        who = self.process.described if self.process else f"pid {self.pid}"
        return f"GPU {self.gpu}: {who} ({self.memory_mib} MiB)"


def gpus(transport: Transport) -> list[Gpu]:
    """[] on a host without NVIDIA GPUs."""
    found = []
    for row in _query(transport, "gpu", GPU_FIELDS):
        index, uuid, name, total, used, load, capability, driver = row
        arch = "sm_" + capability.replace(".", "")
        found.append(Gpu(int(index), uuid, name, _number(total), _number(used), _number(load), arch, driver))
    return found


def holders(transport: Transport, *, sudo: bool = False) -> list[GpuHolder]:
    """Every compute process on every GPU."""
    indices = {gpu.uuid: gpu.index for gpu in gpus(transport)}
    rows = _query(transport, "compute-apps", APP_FIELDS) if indices else []
    facts = {one.pid: one for one in processes(transport, [int(row[1]) for row in rows], sudo=sudo)} if rows else {}
    return [GpuHolder(indices.get(row[0], -1), int(row[1]), _number(row[2]), facts.get(int(row[1]))) for row in rows]


def foreign_holders(transport: Transport, own_pids: Sequence[int], *, sudo: bool = False) -> list[GpuHolder]:
    """Holders that are neither one of `own_pids` nor of their sessions: training or somebody else's job."""
    everyone = holders(transport, sudo=sudo)
    sessions = {one.sid for one in processes(transport, list(own_pids), sudo=sudo)}
    return [
        one for one in everyone if one.pid not in own_pids and (one.process is None or one.process.sid not in sessions)
    ]


def wait_free(
    transport: Transport,
    pids: Sequence[int],
    timeout_s: float,
    *,
    sudo: bool = False,
    check_cancelled: Callable[[], None] = lambda: None,
) -> None:
    """Until none of `pids` holds GPU memory: a stopped service may keep it for a while. Raises with who still does."""
    end = time.monotonic() + timeout_s
    while left := [one for one in holders(transport, sudo=sudo) if one.pid in pids]:
        if time.monotonic() > end:
            raise OrchestrateError(
                f"host {transport.host!r}: the GPU memory was not freed within {timeout_s:g} s "
                f"({left[0].described}); end that "
                "process by hand."
            )
        check_cancelled()
        time.sleep(POLL_S)


def _query(transport: Transport, what: str, fields: Sequence[str]) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = transport.run(command, timeout_s=60)
    if done.exit_code == 127:  # the shell found no such program
        return []
    if not done.ok:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:] or ["no output"]
        raise OrchestrateError(f"host {transport.host!r}: nvidia-smi failed ({said[0]}); mend the driver first.")
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if len(row) == len(fields)]


def _number(text: str) -> int:
    """nvidia-smi says [N/A] or [Not Supported] where a device does not tell."""
    return int(float(text)) if text.replace(".", "", 1).isdigit() else 0
