"""Ends processes of an earlier, interrupted attempt: {"word": TEXT}; those whose command line contains the text.

Never itself, nor the shells above it. Prints the list of pids that were ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def line_above() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 1:
        found.add(pid)
        pid = parent(pid)
    return found


def main() -> None:
    word = json.loads(sys.argv[1])["word"].encode()
    mine = line_above()
    stale = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in mine:
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if word in file.read():
                    stale.append(int(name))
    for sig, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for pid in stale:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
        end = time.monotonic() + patience
        while time.monotonic() < end and any(alive(pid) for pid in stale):
            time.sleep(0.05)
    print(json.dumps(stale))


if __name__ == "__main__":
    main()
