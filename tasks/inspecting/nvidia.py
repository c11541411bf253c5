"""GPUs of a host from the texts of nvidia-smi."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MIB = 1 << 20
# Reasons to run below the maximum clock, bit by bit; idle (1) and user settings (2, 0x100) are no fault.
THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
# Names for which an old driver reports no compute capability.
KNOWN_CAPABILITY = (
    (r"RTX PRO \d000|RTX 50\d0", "12.0"),
    (r"B200|GB200", "10.0"),
    (r"B300|GB300", "10.3"),
    (r"H[12]00|GH200|H20\b", "9.0"),
    (r"L40|L4\b|RTX 40\d0|RTX \d000 Ada", "8.9"),
    (r"A6000|A40\b|A10\b|RTX 30\d0|RTX A\d000", "8.6"),
    (r"A100|A30\b", "8.0"),
    (r"T4\b|RTX 20\d0", "7.5"),
    (r"V100", "7.0"),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes, clocks in MHz, power in watts. None where the driver gives no value."""

    index: int
    name: str
    uuid: str
    arch: str | None
    memory_bytes: int
    free_bytes: int
    driver: str
    mig: bool = False
    ecc: bool | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttled_by: list[str] = field(default_factory=list)
    persistence: bool | None = None
    utilisation: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    gpu_uuid: str
    name: str
    bytes: int | None


@dataclass(frozen=True)
class GpuFacts:
    """Everything about the host's GPUs. `state` is ok, none (no tool), no-driver, mismatch, no-device, slow or denied."""

    state: str
    detail: str = ""
    gpus: list[Gpu] = field(default_factory=list)
    processes: list[GpuProcess] = field(default_factory=list)
    mig_devices: list[str] = field(default_factory=list)
    cuda: str | None = None
    topology: dict[str, str] = field(default_factory=dict)
    p2p: dict[str, str] = field(default_factory=dict)
    open_kernel_module: bool | None = None

    @property
    def arch(self) -> str | None:
        """Architecture of the first GPU; `cpu` where there is none and none is expected."""
        return self.gpus[0].arch if self.gpus else "cpu" if self.state == "none" else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_gpus(texts: Mapping[str, Mapping[str, Any]], driver_file: str = "") -> GpuFacts:
    """Facts from the probe's commands gpus, apps, list, header, topology and p2p."""
    state, detail = _state(texts.get("gpus", {}))
    if state != "ok":
        return GpuFacts(state, detail, open_kernel_module=_open_module(driver_file))
    header = texts.get("header", {}).get("out", "")
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*([\d.]+)", header)
    return GpuFacts(
        state="ok",
        gpus=[_gpu(row) for row in _rows(texts["gpus"]["out"])],
        processes=[p for p in map(_process, _rows(texts.get("apps", {}).get("out", ""))) if p],
        mig_devices=re.findall(r"^\s+MIG\s+(\S+)\s+Device", texts.get("list", {}).get("out", ""), re.M),
        cuda=cuda[1] if cuda else None,
        topology=_matrix(texts.get("topology", {}).get("out", "")),
        p2p=_matrix(texts.get("p2p", {}).get("out", "")),
        open_kernel_module=_open_module(driver_file),
    )


def _state(answer: Mapping[str, Any]) -> tuple[str, str]:
    text = f"{answer.get('out', '')}\n{answer.get('err', '')}"
    code = answer.get("exit", 127)
    if code == 127:
        return "none", "nvidia-smi is not installed"
    if "Driver/library version mismatch" in text:
        found = re.search(r"NVML library version:\s*([\d.]+)", text)
        return (
            "mismatch",
            f"the loaded kernel module and the driver library{' ' + found[1] if found else ''} differ: reboot or reload the module",
        )
    if "couldn't communicate with the NVIDIA driver" in text:
        return "no-driver", "nvidia-smi is installed, but no NVIDIA driver is loaded"
    if "No devices were found" in text:
        return "no-device", "the driver is loaded, but no GPU is visible (in a container: pass the devices through)"
    if code == 124:
        return "slow", "nvidia-smi gave no answer in time: a GPU may hang; look at the kernel log"
    if code != 0 or not _rows(answer.get("out", "")):
        said = answer.get("err", "").strip() or text.strip()
        return "denied", said.splitlines()[0] if said else f"nvidia-smi ended with {code}"
    return "ok", ""


def _rows(text: str) -> list[dict[str, str]]:
    """CSV of nvidia-smi as dictionaries whose keys are the plain field names, without units."""
    lines = [line for line in text.splitlines() if "," in line]
    if not lines:
        return []
    try:
        heading, *rows = csv.reader(io.StringIO("\n".join(lines)), skipinitialspace=True)
    except csv.Error:  # a field of more than 128 KiB: no table
        return []
    names = [re.sub(r"\s*\[.*", "", name).strip() for name in heading]
    return [dict(zip(names, (v.strip() for v in row), strict=False)) for row in rows]


def _gpu(row: Mapping[str, str]) -> Gpu:
    capability = row.get("compute_cap", "")
    if not re.fullmatch(r"\d+\.\d+", capability):
        capability = next((cap for pattern, cap in KNOWN_CAPABILITY if re.search(pattern, row.get("name", ""))), "")
    active = row.get("clocks_throttle_reasons.active") or row.get("clocks_event_reasons.active") or "0"
    bits = int(active, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active) else 0
    return Gpu(
        index=_int(row.get("index")) or 0,
        name=row.get("name", "?"),
        uuid=row.get("uuid", ""),
        arch="sm_" + capability.replace(".", "") if capability else None,
        memory_bytes=(_int(row.get("memory.total")) or 0) * MIB,
        free_bytes=(_int(row.get("memory.free")) or 0) * MIB,
        driver=row.get("driver_version", ""),
        mig=row.get("mig.mode.current") == "Enabled",
        ecc=_switch(row.get("ecc.mode.current")),
        clock_mhz=_int(row.get("clocks.current.sm") or row.get("clocks.sm")),
        max_clock_mhz=_int(row.get("clocks.max.sm")),
        power_w=_float(row.get("power.draw")),
        power_limit_w=_float(row.get("power.limit")),
        temperature_c=_int(row.get("temperature.gpu")),
        throttled_by=[name for bit, name in THROTTLE.items() if bits & bit],
        persistence=_switch(row.get("persistence_mode")),
        utilisation=_int(row.get("utilization.gpu")),
    )


def _process(row: Mapping[str, str]) -> GpuProcess | None:
    pid = _int(row.get("pid"))
    if pid is None:
        return None
    used = _int(row.get("used_gpu_memory") or row.get("used_memory"))
    return GpuProcess(pid, row.get("gpu_uuid", ""), row.get("process_name", "?"), None if used is None else used * MIB)


def _matrix(text: str) -> dict[str, str]:
    """{"GPU0-GPU1": "NV18"} of a topology table (upper triangle)."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [re.split(r"\s+", line.strip()) for line in plain.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    rows = [row for row in rows if "X" in row]  # the heading names GPUs too, but has no diagonal
    links = {}
    for i, row in enumerate(rows):
        for j in range(i + 1, len(rows)):
            if j + 1 < len(row):
                links[f"GPU{i}-GPU{j}"] = row[j + 1]
    return links


def _open_module(text: str) -> bool | None:
    return "Open Kernel Module" in text if text else None


def _int(text: str | None) -> int | None:
    value = _float(text)
    return None if value is None else int(value)


def _float(text: str | None) -> float | None:
    match = re.match(r"-?\d{1,15}(\.\d+)?(?!\d)", text or "", re.ASCII)
    return float(match[0]) if match else None


def _switch(text: str | None) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text or "")
