"""The lock of a host against two operators: {"path", "verb", "owner", "process", "run_id", "ttl_s", "reason", "from"}.

Verbs: take, beat, release, status, steal, forget. The lock is a JSON file changed under flock; it is free when its expiry (by
a clock that no clock change moves) has passed or the host was restarted; until another run takes it then, a beat of the
last holder brings it back. `from` lets a steal happen only while that run holds it. A steal with `ttl_s` 0 leaves the
lock free, with the record of the theft. Forgetting takes both files away unless a run holds the lock. Prints {"granted",
"holder": {...} or null}; a refused beat says who took it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from typing import IO, Any


def ticking() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def read(path: str) -> dict[str, Any] | None:
    """The last holder, also one whose time is up."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def alive(holder: dict[str, Any]) -> bool:
    return bool(holder.get("boot_id") == boot_id() and holder.get("until", 0) > ticking())


def write(path: str, holder: dict[str, Any]) -> None:
    part = path + ".orchestrate-part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(holder, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def through_gate(path: str) -> IO[str]:
    """The gate file, locked until it is closed; a new one when it was forgotten while it was waited for."""
    while True:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the folder was taken away meanwhile too
            gate = open(path + ".flock", "w", encoding="utf-8")  # noqa: SIM115 - held by the caller
            fcntl.flock(gate, fcntl.LOCK_EX)
            if os.path.exists(gate.name) and os.path.samestat(os.fstat(gate.fileno()), os.stat(gate.name)):
                return gate
            gate.close()


def main() -> None:
    wish: dict[str, Any] = json.loads(sys.argv[1])
    path, verb, run_id = wish["path"], wish["verb"], wish.get("run_id", "")
    with through_gate(path):
        last = read(path)
        holder = last if last is not None and alive(last) else None
        mine = last is not None and last.get("run_id") == run_id
        granted = False
        if verb in ("take", "steal", "beat"):
            other = wish.get("from") or (holder or {}).get("run_id")
            stealing = verb == "steal" and (holder is None or holder["run_id"] == other)
            granted = mine or stealing or (holder is None and verb == "take")
            if granted:
                since = last["since"] if mine and last else time.time()
                stolen = {"from": holder, "reason": wish["reason"]} if verb == "steal" and holder and not mine else None
                ttl = float(wish["ttl_s"])
                holder = {
                    "owner": wish["owner"],
                    "process": wish.get("process", ""),
                    "run_id": run_id,
                    "since": since,
                    "boot_id": boot_id(),
                    "until": ticking() + ttl,
                    "expires": time.time() + ttl,
                    "stolen": stolen,
                }
                write(path, holder)
            elif verb == "beat":
                holder = last
        elif verb == "release" and mine:
            os.remove(path)
            granted, holder = True, None
        elif verb == "forget" and holder is None:
            for name in (path, path + ".flock"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(name)
            granted = True
        print(json.dumps({"granted": granted, "holder": holder}))


if __name__ == "__main__":
    main()
