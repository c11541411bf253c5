"""What to ask nvidia-smi for on the host under test, and how to read the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from orchestrator.bench.rows import HostSample

_FIELDS = "clocks.sm,power.draw,temperature.gpu,memory.used,clocks_event_reasons.active"
QUERY_COMMAND = f"nvidia-smi --query-gpu={_FIELDS} --format=csv,noheader,nounits"
FAMILY_COMMAND = "ps -eo pid=,ppid="
PROCESS_COMMAND = "nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader"

# Bits of the NVML clock event reasons; the first two are not a throttle that hurts a measurement.
_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_sample(query: str, processes: str, own_pids: Collection[int]) -> HostSample:
    """One sample from the outputs of both commands.

    With several GPUs: the lowest clock, summed power and memory, the highest temperature. `own_pids` are the
    processes of the servers under test; any other compute process is foreign.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in query.splitlines() if line.count(",") >= 4]
    clocks, power, heat, memory = ([v for r in rows if (v := _number(r[i])) is not None] for i in range(4))
    reasons: set[str] = set()
    for row in rows:
        bits = int(row[4], 16) if row[4].lower().startswith("0x") else 0
        reasons |= {name for bit, name in _REASONS.items() if bits & bit}
    foreign = []
    for line in processes.splitlines():
        pid, _, name = line.partition(",")
        if pid.strip().isdigit() and int(pid) not in own_pids:
            foreign.append(f"{name.strip()} (pid {pid.strip()})")
    return HostSample(
        sm_clock_mhz=min(clocks, default=None),
        power_w=sum(power) if power else None,
        temperature_c=max(heat, default=None),
        memory_used_mib=sum(memory) if memory else None,
        throttle_reasons=tuple(sorted(reasons)),
        foreign_processes=tuple(foreign),
    )


def family(listing: str, roots: Iterable[int]) -> set[int]:
    """The processes `roots` and all their descendants, from the output of FAMILY_COMMAND: a server's workers hold the GPU."""
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        if match := re.fullmatch(r"\s*(\d+)\s+(\d+)\s*", line):
            children.setdefault(int(match[2]), []).append(int(match[1]))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def read_sample(run: Callable[[str], str | None], roots: Iterable[int]) -> HostSample | None:
    """A sample of the host on which `run` runs a command (None: it failed); None where there is no nvidia-smi.

    roots: main processes of the servers under test.
    """
    figures = run(QUERY_COMMAND)
    if figures is None:
        return None
    return parse_sample(figures, run(PROCESS_COMMAND) or "", family(run(FAMILY_COMMAND) or "", roots))
