"""How the TUI fares with 2,000 tasks and 50,000 events: `python -m tests.tui.scale [--json FILE]`.

Prints first paint, key-to-paint, CPU while idle, CPU and memory under a stream of events, each beside its target.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from orchestrator.graph.model import State
from orchestrator.store.store import Store
from tests.tui.fixtures import HOSTS, RUN_ID, Clock, Script, new_store, spec
from tests.tui.pty_screen import PtyScreen

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


def measure(store: Store, script: Script, folder: Path, idle_s: float, stream_s: float) -> dict[str, float]:
    """Of the program as an operator starts it, from its start on a terminal of its own."""
    command = [sys.executable, "-m", "orchestrator", "tui", RUN_ID, "--hosts", str(folder / "hosts.yaml")]
    screen = PtyScreen(command, {**os.environ, "XDG_STATE_HOME": str(folder)})
    try:
        found = {"first_paint_s": screen.frame_with(f"task-{TASKS // 2:04}", "with a few words about")}
        found |= keys(screen)
        found |= idle(screen, idle_s)
        found |= stream(screen, store, script, stream_s)
    finally:
        screen.close()
    return found


def keys(screen: PtyScreen) -> dict[str, float]:
    """From a key to the end of the frame that it caused, over moves, pages and ends of the tree."""
    cpu = screen.cpu_s
    waits = [screen.key(key) * 1e3 for key in ["j", "j", "k", "\x1b[6~", "G", "g", "l", "h"] * 15]
    used = screen.cpu_s - cpu
    waits.sort()
    return {
        "key_cpu_ms": used * 1e3 / len(waits),
        "key_to_paint_p50_ms": statistics.median(waits),
        "key_to_paint_p95_ms": waits[int(len(waits) * 0.95)],
    }


def idle(screen: PtyScreen, seconds: float) -> dict[str, float]:
    """Processor time while the run goes on and nothing happens, percent of a core."""
    screen.watch(1.0)
    cpu, began = screen.cpu_s, time.perf_counter()
    screen.watch(seconds)
    return {"idle_cpu_percent": 100 * (screen.cpu_s - cpu) / (time.perf_counter() - began)}


def stream(screen: PtyScreen, store: Store, script: Script, seconds: float) -> dict[str, float]:
    """Memory and processor time while log lines stream in: growth over the second half, where caches are full."""
    running = next(task.key for task in script.tasks.values() if task.state is State.IN_PROGRESS)
    screen.key("x")  # to the running task, whose log follows
    stop, sent = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            with store.transaction():
                for _ in range(50):
                    store.events.append(RUN_ID, running, "log", {"line": f"streamed line {sent[0]} " + "word " * 12})
                    sent[0] += 1
            stop.wait(0.05)

    writer = threading.Thread(target=write)
    cpu = screen.cpu_s
    writer.start()
    screen.watch(seconds / 2)
    middle, sent_then = screen.rss_mib, sent[0]
    screen.watch(seconds / 2)
    grown, events = screen.rss_mib - middle, sent[0] - sent_then
    stop.set()
    writer.join()
    screen.frame_with(f"streamed line {sent[0] - 1} ")
    return {
        "streamed_events": float(sent[0]), "stream_cpu_percent": 100 * (screen.cpu_s - cpu) / seconds,
        "rss_mib": screen.rss_mib, "growth_mib_per_10k_events": grown / max(1, events) * 10_000,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of watching an idle screen")
    parser.add_argument("--stream", type=float, default=60.0, help="seconds of streaming events")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store, script = fill(Path(name))
        with store:
            found = measure(store, script, Path(name), options.idle, options.stream)
    for key, value in found.items():
        target = TARGETS.get(key)
        print(f"{key:<28} {value:10.2f}" + (f"   target <= {target:g}" if target is not None else ""))
    if options.json:
        options.json.write_text(
            json.dumps({"tasks": TASKS, "events": EVENTS, "found": found, "targets": TARGETS}, indent=1)
        )


if __name__ == "__main__":
    main()
