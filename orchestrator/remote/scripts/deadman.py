"""Brings the previous release back when nobody confirms the new one: `deadman.py VERB DIR [TOKEN]`.

DIR/armed.json is written by the operator before the switch: {"token", "seconds", "files": {path: text or null},
"restores": NAME, "links": {path: target or null}, "commands": [[...], ...], "boot_commands": [[...], ...]}.
Verbs: wait TOKEN (until the time is up, then fire) · detach TOKEN (wait, as a process of its own) · fire · boot (fire if still
armed) · disarm · status. Firing and disarming exclude each other through a lock, so exactly one of them happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from typing import Any, Iterator  # noqa: UP035 - Python 3.8

COMMAND_TIMEOUT_S = 900
TRIES = 3
PART = ".orchestrate-host-part"  # the host's own: an operator may be replacing the same file or link at this moment


def path(folder: str, name: str) -> str:
    return os.path.join(folder, name)


def read(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(path(folder, name), encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def write(target: str, text: str, mode: int) -> None:
    part = target + PART
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, target)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    with open(path(folder, "lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_locked(folder: str) -> bool:
    try:
        with open(path(folder, "lock"), "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def ticking() -> float:
    """Seconds that no clock change moves and that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def restore(plan: dict[str, Any], commands: list[list[str]]) -> list[dict[str, Any]]:
    """Files first, then links, then commands; each step is tried on even when an earlier one failed."""
    steps: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("file " + target, put, (target, text)) for target, text in plan.get("files", {}).items()
    ]
    steps += [("link " + link, relink, (link, target)) for link, target in plan.get("links", {}).items()]
    steps += [(" ".join(command), run, (command,)) for command in commands]
    return [attempt(what, work, arguments) for what, work, arguments in steps]


def attempt(what: str, work: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    error = ""
    for turn in range(TRIES):
        try:
            work(*arguments)
            return {"step": what, "ok": True, "tries": turn + 1}
        except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
            error = str(problem)
            time.sleep(min(2**turn, 5))
    return {"step": what, "ok": False, "error": error, "tries": TRIES}


def put(target: str, text: str | None) -> None:
    if text is None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(target)
    else:
        os.makedirs(
            os.path.dirname(target), exist_ok=True
        )  # an empty folder of drop-ins was taken away with the last one
        write(target, text, os.stat(target).st_mode & 0o777 if os.path.exists(target) else 0o644)


def relink(link: str, points_to: str | None) -> None:
    if points_to is None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(link)
        return
    part = link + PART
    with contextlib.suppress(FileNotFoundError):
        os.remove(part)
    try:
        os.symlink(points_to, part)
        os.replace(part, link)
    except OSError:  # a full disk may still take one name in place of another
        os.remove(link)
        os.symlink(points_to, link)


def run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")


def fire(folder: str, token: str | None, why: str, commands: str = "commands") -> dict[str, Any]:
    with locked(folder):
        plan = read(folder, "armed.json")
        if plan is None or (token is not None and plan["token"] != token):
            return status(folder)
        # Said before it is done: who looks meanwhile must not believe that the new release is still guarded.
        record = {"state": "firing", "token": plan["token"], "why": why, "at": time.time(), "steps": []}
        record["restores"] = plan.get("restores")
        note(folder, record)
        record["steps"] = restore(plan, plan[commands])
        record["state"] = "fired" if all(step["ok"] for step in record["steps"]) else "failed"
        record["done_at"] = time.time()
        settle(folder, record)
        return record


def note(folder: str, record: dict[str, Any]) -> bool:
    """Write what happened. On a full disk the reserve that was laid by when arming makes room for it."""
    for _ in range(2):
        try:
            write(path(folder, "outcome.json"), json.dumps(record), 0o644)
            return True
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(path(folder, "reserve"))
    return False


def settle(folder: str, record: dict[str, Any]) -> None:
    """No longer armed. Without room for the record, renaming (which needs none) still says that it was fired."""
    written = note(folder, record)
    if not written and record["state"] == "disarmed":
        raise OSError("the disk is full: the switch stays armed")
    if written:
        os.remove(path(folder, "armed.json"))
    else:
        os.replace(path(folder, "armed.json"), path(folder, "outcome.json"))
    with contextlib.suppress(OSError):
        os.remove(path(folder, "reserve"))


def disarm(folder: str, token: str) -> dict[str, Any]:
    with locked(folder):
        plan = read(folder, "armed.json")
        if plan is None or plan["token"] != token:
            return status(folder)
        record = {"state": "disarmed", "token": token, "at": time.time()}
        settle(folder, record)
        return record


def status(folder: str) -> dict[str, Any]:
    plan, outcome = read(folder, "armed.json"), read(folder, "outcome.json")
    if plan is not None:
        begun = outcome is not None and (outcome["state"], outcome.get("token")) == ("firing", plan["token"])
        # A firing that a restart of the host cut short holds no lock any more: it can be fired again.
        state = "firing" if begun and is_locked(folder) else "armed"
        return {"state": state, "token": plan["token"], "restores": plan.get("restores"), "begun": begun}
    return {"state": "fired", **outcome} if outcome else {"state": "never armed"}


def wait(folder: str, token: str) -> dict[str, Any]:
    plan = read(folder, "armed.json")
    if plan is None or plan["token"] != token:
        return status(folder)
    end = ticking() + float(plan["seconds"])
    while ticking() < end:
        now = read(folder, "armed.json")
        if now is None or now["token"] != token:
            return status(folder)
        time.sleep(0.2)
    return fire(folder, token, "nobody confirmed the new release in time")


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
    return status(folder)


def main() -> None:
    verb, folder = sys.argv[1], os.path.abspath(sys.argv[2])
    token = sys.argv[3] if len(sys.argv) > 3 else None
    if verb == "wait":
        answer = wait(folder, sys.argv[3])
    elif verb == "detach":
        answer = detach(folder, sys.argv[3])
    elif verb == "fire":
        answer = fire(folder, token, "fired by command")
    elif verb == "boot":
        answer = fire(folder, token, "the host restarted before the new release was confirmed", "boot_commands")
    elif verb == "disarm":
        answer = disarm(folder, token or "")
    else:
        answer = status(folder)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
