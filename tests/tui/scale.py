"""How the TUI fares with 2,000 tasks and 50,000 events: `python -m tests.tui.scale [--json FILE]`.

Prints first paint, key-to-paint, CPU while idle, CPU and memory under a stream of events, each beside its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator.graph.model import State
from orchestrator.store.store import Store
from orchestrator.tui.app import OrchestrateApp
from orchestrator.tui.prefs import Prefs
from tests.tui.fixtures import HOSTS, RUN_ID, Clock, Script, new_store, spec

TASKS, EVENTS = 2_000, 50_000
TARGETS = {"first_paint_s": 1.0, "key_to_paint_p95_ms": 50.0, "idle_cpu_percent": 2.0, "growth_mib_per_10k_events": 1.0}


def fill(folder: Path) -> tuple[Store, Script]:
    """2,000 tasks in 40 phases, half of them done, and 50,000 events."""
    (folder / "hosts.yaml").write_text(HOSTS)
    clock = Clock(time.time())
    store = new_store(folder, clock)
    specs = [
        spec(f"task-{number:04}", f"Do the thing number {number} of this long deployment", f"phase {number // 50:02}",
             *([f"task-{number - 1:04}"] if number % 50 else []))
        for number in range(TASKS)
    ]  # fmt: skip
    script = Script.begin(store, clock, specs=specs)
    with store.transaction():
        for number in range(TASKS // 2):
            script.start(f"task-{number:04}")
            script.finish(f"task-{number:04}", 0.0)
        script.start(f"task-{TASKS // 2:04}")
        for number in range(EVENTS - store.events.count()):
            key = f"task-{number % (TASKS // 2):04}" if number % 4 else f"task-{TASKS // 2:04}"
            store.events.append(RUN_ID, key, "log", {"line": f"line {number} with a few words about what is going on"})
    assert store.events.count() == EVENTS
    return store, script


async def painted(app: OrchestrateApp, condition: Any) -> float:
    began = time.perf_counter()
    while not condition():
        await asyncio.sleep(0.001)
        if time.perf_counter() - began > 60:
            raise TimeoutError("nothing was painted in a minute")
    return time.perf_counter() - began


async def measure(store: Store, script: Script, folder: Path, idle_s: float, stream_s: float) -> dict[str, float]:
    found: dict[str, float] = {}
    app = OrchestrateApp(f"sqlite:///{folder / 'state.db'}", RUN_ID, folder / "hosts.yaml", Prefs())
    began = time.perf_counter()
    async with app.run_test(size=(160, 50)) as pilot:
        await painted(app, lambda: app.run_view.task_tree.rows and app.run_view.log_view.lines)
        await pilot.pause()
        found["first_paint_s"] = time.perf_counter() - began
        found |= await keys(app, pilot)
        found["idle_cpu_percent"] = await idle(idle_s)
        found |= await stream(app, store, script, stream_s)
    return found


async def keys(app: OrchestrateApp, pilot: Any) -> dict[str, float]:
    """From a key to the painted screen, over 120 keys in tree and log."""
    waits, cpu = [], time.process_time()
    for key in ["j", "j", "k", "pagedown", "G", "g", "l", "h"] * 15:
        began = time.perf_counter()
        await pilot.press(key)
        app.screen._compositor.render_strips(app.size)
        waits.append((time.perf_counter() - began) * 1e3)
    cpu_ms = (time.process_time() - cpu) * 1e3 / len(waits)
    waits.sort()
    return {
        "key_cpu_ms": cpu_ms,
        "key_to_paint_p50_ms": statistics.median(waits),
        "key_to_paint_p95_ms": waits[int(len(waits) * 0.95)],
    }


async def idle(seconds: float) -> float:
    """CPU of this process while the run goes on and nothing happens, percent of a core."""
    await asyncio.sleep(1.0)
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (time.process_time() - cpu) / (time.perf_counter() - began)


async def stream(app: OrchestrateApp, store: Store, script: Script, seconds: float) -> dict[str, float]:
    """Memory while log lines stream in from another thread: growth over the second half, where caches are full."""
    running = next(task.key for task in script.tasks.values() if task.state is State.IN_PROGRESS)
    app.run_view.task_tree.select(running)
    stop, sent = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            with store.transaction():
                for _ in range(50):
                    store.events.append(RUN_ID, running, "log", {"line": f"streamed line {sent[0]} " + "word " * 12})
                    sent[0] += 1
            stop.wait(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    await asyncio.sleep(seconds / 2)
    middle, sent_then = rss_mib(), sent[0]
    await asyncio.sleep(seconds / 2)
    grown, events = rss_mib() - middle, sent[0] - sent_then
    stop.set()
    writer.join()
    await painted(app, lambda: app.reading.seq >= store.events.last_seq(RUN_ID))
    return {
        "streamed_events": float(sent[0]), "rss_mib": rss_mib(),
        "growth_mib_per_10k_events": grown / max(1, events) * 10_000,
    }  # fmt: skip


def rss_mib() -> float:
    """Memory of this process that is in RAM (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmRSS in /proc/self/status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of watching an idle screen")
    parser.add_argument("--stream", type=float, default=60.0, help="seconds of streaming events")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store, script = fill(Path(name))
        with store:
            found = asyncio.run(measure(store, script, Path(name), options.idle, options.stream))
    for key, value in found.items():
        target = TARGETS.get(key)
        print(f"{key:<28} {value:10.2f}" + (f"   target <= {target:g}" if target is not None else ""))
    if options.json:
        options.json.write_text(
            json.dumps({"tasks": TASKS, "events": EVENTS, "found": found, "targets": TARGETS}, indent=1)
        )


if __name__ == "__main__":
    main()
