"""Facts about processes from /proc, for {"pids": [...]}, {"port": N}, {"match": REGEX} or {"session_of": PID}.

"environ": true adds the environment.
Prints a list of {pid, ppid, sid, start_time, started_at, uid, user, cmdline, exe, cwd, unit, rss_bytes, environ?}.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import sys
from typing import Any, Iterable  # noqa: UP035 - Python 3.8

TICKS = os.sysconf("SC_CLK_TCK")
LISTEN = "0A"


def boot_time() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        return float(next(line.split()[1] for line in file if line.startswith("btime")))


def text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def unit_of(pid: int) -> str:
    """The systemd unit that a process belongs to, from its cgroup; empty outside any."""
    with contextlib.suppress(OSError):
        for line in text(f"/proc/{pid}/cgroup").splitlines():
            for part in reversed(line.split(":", 2)[-1].split("/")):
                if part.endswith((".service", ".scope")):
                    return part
    return ""


def facts(pid: int, with_environ: bool, booted: float) -> dict[str, Any] | None:
    try:
        fields = text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if fields[0] == "Z":
            return None
        uid = os.stat(f"/proc/{pid}").st_uid
        found: dict[str, Any] = {
            "pid": pid,
            "ppid": int(fields[1]),
            "sid": int(fields[3]),
            "start_time": fields[19],
            "started_at": booted + int(fields[19]) / TICKS,
            "uid": uid,
            "user": user_name(uid),
            "cmdline": text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0"),
            "exe": link(f"/proc/{pid}/exe"),
            "cwd": link(f"/proc/{pid}/cwd"),
            "unit": unit_of(pid),
            "rss_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        }
        if with_environ:
            pairs = (item.partition("=") for item in text(f"/proc/{pid}/environ").split("\0") if "=" in item)
            found["environ"] = {name: value for name, _, value in pairs}
        return found
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return {"pid": pid, "denied": True}


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def listeners(port: int) -> set[int]:
    """Pids that hold a listening TCP socket on `port`."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in text(table).splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    found = set()
    for pid in all_pids():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                if link(f"/proc/{pid}/fd/{name}") in inodes:
                    found.add(pid)
                    break
    return found


def matching(pattern: str) -> Iterable[int]:
    wanted = re.compile(pattern)
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted.search(text(f"/proc/{pid}/cmdline").replace("\0", " ")):
                yield pid


def main() -> None:
    wish = json.loads(sys.argv[1])
    pids: set[int] = set(wish.get("pids", []))
    if "port" in wish:
        pids |= listeners(int(wish["port"]))
    if "match" in wish:
        pids |= set(matching(wish["match"]))
    if "session_of" in wish:
        every = [facts(pid, False, 0.0) for pid in all_pids()]
        sid = next((f["sid"] for f in every if f and f["pid"] == wish["session_of"] and "sid" in f), None)
        pids |= {f["pid"] for f in every if f and sid is not None and f.get("sid") == sid}
    booted = boot_time()
    found = [facts(pid, bool(wish.get("environ")), booted) for pid in sorted(pids)]
    print(json.dumps([entry for entry in found if entry]))


if __name__ == "__main__":
    main()
