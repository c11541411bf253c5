"""Outputs of nvidia-smi, systemctl and /proc as hosts give them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.inspecting import hardware_part
from tasks.inspecting.nvidia import GpuFacts, read_gpus
from tasks.inspecting.serving import Serving
from tasks.inspecting.system import exec_argv, read_limits, read_system, read_unit, seconds

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> Any:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def gpus(name: str) -> GpuFacts:
    captured = fixture(f"nvidia/{name}")
    return read_gpus(captured["commands"], captured["driver_file"])


def test_eight_rtx_pro_6000() -> None:
    found = gpus("rtx_pro_6000_x8")
    assert (found.state, len(found.gpus), found.arch, found.cuda) == ("ok", 8, "sm_120", "13.0")
    assert found.gpus[0].memory_bytes == 97887 << 20
    assert found.gpus[6].throttled_by == ["power cap", "thermal (software)"]
    assert found.gpus[2].throttled_by == []  # idle is no fault
    assert (found.topology["GPU0-GPU1"], found.topology["GPU0-GPU7"], len(found.topology)) == ("NODE", "SYS", 28)
    assert found.p2p["GPU0-GPU7"] == "OK"
    assert found.open_kernel_module is True
    assert [(p.pid, p.bytes) for p in found.processes] == [
        (4211, 81220 << 20),
        (4300, 81220 << 20),
        (9912, 40940 << 20),
    ]


def test_h200_pair() -> None:
    found = gpus("h200_x2")
    assert (found.arch, found.topology) == ("sm_90", {"GPU0-GPU1": "NV18"})
    assert (found.gpus[0].clock_mhz, found.gpus[0].max_clock_mhz, found.gpus[0].power_limit_w) == (1980, 1980, 700.0)


def test_h200_as_captured_from_a_live_machine() -> None:
    found = gpus("h200_driver_580")
    assert (found.state, found.arch, found.cuda, found.topology) == ("ok", "sm_90", "13.0", {})
    gpu = found.gpus[0]
    assert (gpu.name, gpu.driver, gpu.ecc, gpu.mig, gpu.throttled_by) == ("NVIDIA H200", "580.159.04", True, False, [])
    assert (gpu.clock_mhz, gpu.max_clock_mhz, gpu.free_bytes >> 20) == (345, 1980, 143156)
    assert found.processes == []
    assert found.open_kernel_module is True


def test_a6000_without_ecc_and_mig() -> None:
    gpu = gpus("a6000").gpus[0]
    assert (gpu.arch, gpu.mig, gpu.ecc, gpu.persistence) == ("sm_86", False, False, False)
    assert gpus("a6000").open_kernel_module is False


def test_mig_devices() -> None:
    found = gpus("h200_mig")
    assert found.gpus[0].mig is True
    assert found.mig_devices == ["3g.71gb", "1g.18gb"]
    assert found.processes[0].bytes is None


def test_old_driver_gives_no_capability() -> None:
    found = gpus("old_driver_a100")
    assert (found.arch, found.gpus[0].utilisation) == ("sm_80", None)


@pytest.mark.parametrize(
    ("name", "state", "says"),
    [
        ("no_tool", "none", "not installed"),
        ("no_driver", "no-driver", "no NVIDIA driver is loaded"),
        ("mismatch", "mismatch", "reboot or reload"),
        ("no_device", "no-device", "no GPU is visible"),
        ("hangs", "slow", "no answer in time"),
        ("denied", "denied", "Insufficient Permissions"),
    ],
)
def test_no_usable_gpu(name: str, state: str, says: str) -> None:
    found = gpus(name)
    assert (found.state, found.gpus) == (state, [])
    assert says in found.detail
    assert found.arch == ("cpu" if state == "none" else None)


def test_foreign_job_is_told_from_the_service() -> None:
    server = Serving("sglang", 4100, "sglang.service", 0, 30000, ["python"], "python", "/v")

    def other(pid: int, ppid: int, unit: str, engine: str = "") -> dict[str, Any]:
        return {"pid": pid, "ppid": ppid, "unit": unit, "engine": engine}

    listed = [other(4211, 4100, "sglang.service"), other(4300, 4211, "sglang.service"), other(9912, 1, "train.service")]
    facts = {"commands": fixture("nvidia/rtx_pro_6000_x8")["commands"], "processes": {"others": listed}}
    found = hardware_part.foreign(facts, [server])
    assert found == [
        {"pid": 9912, "name": "/opt/train/venv/bin/python3", "bytes": 40940 << 20, "unit": "train.service"}
    ]


@pytest.mark.parametrize(
    ("name", "kind", "systemd"),
    [
        ("bare", "bare", 255),
        ("vm", "vm", 255),
        ("proxmox_ct", "proxmox-ct", 252),
        ("lxc", "lxc", 255),
        ("docker", "docker", None),
        ("proxmox_host", "proxmox-host", 255),
        ("no_root", "unknown", None),
    ],
)
def test_kinds_of_machines(name: str, kind: str, systemd: int | None) -> None:
    captured = fixture(f"system/{name}")
    found = read_system(captured["raw"], captured["commands"])
    assert (found.kind, found.systemd) == (kind, systemd)
    assert found.memory_bytes == 528181248 * 1024
    assert found.limits["memlock_bytes"] == (None if name == "proxmox_ct" else 67633152)
    assert found.iommu == "iommu=pt"


def test_units() -> None:
    units = fixture("system/units")
    active = read_unit(units["active"])
    assert active is not None
    assert (active.main_pid, active.restarts, active.user, active.start_timeout_s) == (4100, 0, "sglang", 90.0)
    assert active.exec_start[:3] == ["/opt/sglang/venv/bin/python", "-m", "sglang.launch_server"]
    assert active.environment == {"CUDA_HOME": "/usr/local/cuda", "HF_HOME": "/models/hf", "SGLANG_PLUGINS": "a,b"}
    assert len(active.drop_ins) == 2
    looping = read_unit(units["looping"])
    assert looping is not None
    assert (looping.main_pid, looping.restarts, looping.needs_reload, looping.start_timeout_s, looping.user) == (
        None, 17, True, None, "root",
    )  # fmt: skip
    assert read_unit(units["missing"]) is None
    assert read_unit(units["no_bus"]) is None


def test_durations() -> None:
    assert seconds("30min") == 1800
    assert seconds("1h 2min 3s") == 3723
    assert seconds("infinity") is None
    assert seconds("") is None


@given(st.text(), st.text(), st.integers(0, 255))
def test_any_output_of_the_tool_is_survived(out: str, err: str, code: int) -> None:
    answer = {"exit": code, "out": out, "err": err}
    found = read_gpus(dict.fromkeys(("gpus", "apps", "list", "header", "topology", "p2p"), answer), out)
    assert found.state in ("ok", "none", "no-driver", "mismatch", "no-device", "slow", "denied")
    assert found.gpus or found.detail or found.state == "ok"


@given(st.text())
def test_any_text_is_survived_by_the_system_readers(text: str) -> None:
    read_unit(text)
    exec_argv(text)
    assert all(value is None or value >= 0 for value in read_limits(text).values())
