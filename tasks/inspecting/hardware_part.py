"""The hardware part of an inspection: GPUs, who holds their memory, and the system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inspecting.nvidia import read_gpus
from tasks.inspecting.serving import Serving
from tasks.inspecting.system import read_system


def read(facts: Mapping[str, Any], servers: Sequence[Serving]) -> dict[str, Any]:
    """{gpu, system, foreign_gpu_processes}."""
    gpu = read_gpus(facts["commands"], facts["system"].get("nvidia_driver_file", ""))
    system = read_system(facts["system"], facts["commands"])
    return {
        "gpu": {**gpu.to_json(), "arch": gpu.arch},
        "system": system.to_json(),
        "foreign_gpu_processes": foreign(facts, servers),
    }


def foreign(facts: Mapping[str, Any], servers: Sequence[Serving]) -> list[dict[str, Any]]:
    """Processes that hold GPU memory and belong to no server: a training run, a notebook, an orphan."""
    gpu = read_gpus(facts["commands"])
    others = {p["pid"]: p for p in facts["processes"]["others"]}
    family = _descendants(others.values(), {s.pid for s in servers})
    found = []
    for process in gpu.processes:
        other = others.get(process.pid)
        server = process.pid in {s.pid for s in servers} or process.pid in family
        if server or (other is not None and other["engine"]):
            continue
        found.append(
            {"pid": process.pid, "name": process.name, "bytes": process.bytes, "unit": other["unit"] if other else None}
        )
    return found


def _descendants(processes: Any, roots: set[int]) -> set[int]:
    """Pids below the roots, through any number of generations that the probe listed."""
    family, table = set(roots), list(processes)
    grown = True
    while grown:
        new = {p["pid"] for p in table if p["ppid"] in family} - family
        family |= new
        grown = bool(new)
    return family - roots
