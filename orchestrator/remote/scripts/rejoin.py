"""Brings a replica back to its router when its operator is lost while it is out: `rejoin.py VERB DIR [TOKEN]`.

Verbs: arm (stdin: {"token", "seconds", "grace_s", "api", "headers", "wish", "port", "pid", "deadman"}) · wait · detach
(wait, as a process of its own) · beat (the operator is there), these three with the plan's token · drop. Everything happens under one lock.
Told to the router is only what may get requests: the very process that was taken out, or a release that the dead man's
switch below `deadman` has settled meanwhile. A service that was stopped stays out, and an armed switch comes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Iterator  # noqa: UP035 - Python 3.8

PLAN, RESULT = "away.json", "result.json"
POLL_S = 0.3
SETTLED = ("disarmed", "fired")


def read(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def write(folder: str, name: str, document: dict[str, Any], mode: int) -> None:
    part = os.path.join(folder, name + ".orchestrate-part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(part, os.path.join(folder, name))


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    with open(os.path.join(folder, "lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ticking() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def heard(folder: str) -> None:
    """The last word of the operator is the plan's time stamp: it needs no room on a full disk."""
    os.utime(os.path.join(folder, PLAN), (ticking(), ticking()))


def silence(folder: str) -> float:
    return ticking() - os.stat(os.path.join(folder, PLAN)).st_mtime


def begun(pid: int) -> str:
    """When a process began, in the kernel's own count: a number that is given anew is another process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def switch(plan: dict[str, Any]) -> dict[str, Any]:
    return read(plan["deadman"], "outcome.json") or {}


def arm(folder: str, plan: dict[str, Any]) -> dict[str, Any]:
    os.makedirs(folder, exist_ok=True)
    with locked(folder):
        known = {"begun": begun(plan["pid"]), "switch": switch(plan).get("token")}
        write(folder, PLAN, {**plan, **known}, 0o600)
        heard(folder)
        return {"state": "armed", "token": plan["token"]}


def beat(folder: str, token: str) -> dict[str, Any]:
    with locked(folder):
        plan = read(folder, PLAN)
        if plan is not None and plan["token"] == token:
            heard(folder)
            return {"state": "armed", "token": token}
        return read(folder, RESULT) or {"state": "dropped"}


def drop(folder: str) -> dict[str, Any]:
    with locked(folder):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, PLAN))
        return {"state": "dropped"}


def end(folder: str, plan: dict[str, Any], state: str, why: str) -> dict[str, Any]:
    """The plan may hold keys, so it goes; without room for the record the host's work counts all the same."""
    result = {"state": state, "token": plan["token"], "why": why, "at": time.time()}
    with contextlib.suppress(OSError):
        write(folder, RESULT, result, 0o644)
    os.remove(os.path.join(folder, PLAN))
    return result


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def tell(plan: dict[str, Any]) -> str:
    """Empty when the router accepted the replica, else why not."""
    headers = {"Content-Type": "application/json", **plan["headers"]}
    wish = urllib.request.Request(plan["api"], json.dumps(plan["wish"]).encode(), headers)
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(wish, timeout=10).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def look(folder: str, plan: dict[str, Any]) -> dict[str, Any] | None:
    """One look; the result once there is one."""
    if os.path.exists(os.path.join(plan["deadman"], "armed.json")):
        heard(folder)  # the switch decides what serves; the time without a word begins when it has
        return None
    quiet = silence(folder)
    if quiet < plan["seconds"]:
        return None
    last = switch(plan)
    if last.get("token") == plan["switch"]:
        if not plan["begun"] or begun(plan["pid"]) != plan["begun"]:
            return end(folder, plan, "left", "the service was stopped meanwhile")
    elif last.get("state", "fired") not in SETTLED:
        return end(folder, plan, "left", "the release of before could not be brought back")
    patient = quiet < plan["seconds"] + plan["grace_s"]
    problem = tell(plan) if answers(plan["port"]) else "the service does not answer"
    if not problem:
        return end(folder, plan, "back", f"nothing was heard for {quiet:.0f} s")
    return None if patient else end(folder, plan, "left", problem)


def wait(folder: str, token: str) -> dict[str, Any]:
    while True:
        with locked(folder):
            plan = read(folder, PLAN)
            if plan is None or plan["token"] != token:
                return {"state": "dropped"}
            result = look(folder, plan)
        if result is not None:
            return result
        time.sleep(POLL_S)


def detach(folder: str, token: str) -> dict[str, Any]:
    """Start `wait` as a process of its own that outlives the connection (for hosts without systemd)."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            quiet = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(quiet, descriptor)
            os.environ.pop("ORCHESTRATE_CALL", None)
            os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), "wait", folder, token])
        os._exit(0)
    os.wait()
    return {"state": "armed"}


def main() -> None:
    verb, folder = sys.argv[1], os.path.abspath(sys.argv[2])
    if verb == "arm":
        answer = arm(folder, json.load(sys.stdin))
    elif verb == "wait":
        answer = wait(folder, sys.argv[3])
    elif verb == "detach":
        answer = detach(folder, sys.argv[3])
    elif verb == "beat":
        answer = beat(folder, sys.argv[3])
    else:
        answer = drop(folder)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
