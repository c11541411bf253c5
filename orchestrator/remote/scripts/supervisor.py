"""Keeps one service running on a host without systemd: `supervisor.py start|stop|status|run DIR`.

DIR holds unit.json, an optional override.json (same fields, wins) and secret.json (environment, mode 600), and gets
state.json and log. The supervisor is the reaper of everything that the service starts, so that stop leaves nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable  # noqa: UP035 - Python 3.8

LOG_BYTES = 16 << 20
LOGS_KEPT = 3
STARTS_ALLOWED = 5
STARTS_WITHIN_S = 60.0
PR_SET_CHILD_SUBREAPER = 36


def read_json(folder: str, name: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


def write_state(folder: str, **fields: Any) -> None:
    part = os.path.join(folder, "state.json.part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(fields, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, os.path.join(folder, "state.json"))


def stat_fields(pid: int | str) -> list[str] | None:
    """The fields of /proc/PID/stat after the name; None when there is no such process or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields


def start_time(pid: int | None) -> str | None:
    fields = stat_fields(pid) if pid else None
    return fields[19] if fields else None


def same(pid: int | None, started: str | None) -> bool:
    return bool(pid) and started is not None and start_time(pid) == started


def family(root: int, session: int | None = None) -> set[int]:
    """Every live descendant of `root`, and every member of `session`."""
    parents = {}
    members = set()
    for entry in os.listdir("/proc"):
        fields = stat_fields(entry) if entry.isdigit() else None
        if fields:
            parents[int(entry)] = int(fields[1])
            if session and int(fields[3]) == session:
                members.add(int(entry))
    found = {root}
    grew = True
    while grew:
        grew = False
        for pid, parent in parents.items():
            if parent in found and pid not in found:
                found.add(pid)
                grew = True
    return (found - {root, os.getpid()}) | (members - {os.getpid()})


def end_all(find: Callable[[], set[int]], patience_s: float) -> bool:
    """SIGTERM to everything that `find` names, SIGKILL to what remains after the patience; True when all is gone."""
    for sig, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
        for pid in find():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            reap()
            if not find():
                return True
            time.sleep(0.05)
    return not find()


def reap() -> None:
    """Collect ended children other than the one that the main loop waits for."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ENDED[pid] = status
    except ChildProcessError:
        return


ENDED: dict[int, int] = {}


def effective(folder: str) -> dict[str, Any]:
    unit = read_json(folder, "unit.json")
    override = read_json(folder, "override.json")
    env = dict(unit.get("env", {}))
    for name in override.get("unset_env", []):
        env.pop(name, None)
    env.update(override.get("env", {}))
    env.update(read_json(folder, "secret.json"))
    merged = {**unit, **{k: v for k, v in override.items() if k in ("argv", "cwd", "release") and v}}
    merged["env"] = env
    return merged


def launch(folder: str, unit: dict[str, Any]) -> subprocess.Popen[bytes]:
    base = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR", "TZ") if k in os.environ}
    with open(os.path.join(folder, "log"), "ab") as log:
        return subprocess.Popen(
            unit["argv"],
            env={**base, **unit["env"]},
            cwd=unit.get("cwd") or os.environ.get("HOME", "/"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def rotate(folder: str) -> None:
    """Copy and truncate, since the service itself holds the file open for appending."""
    log = os.path.join(folder, "log")
    if os.path.getsize(log) < LOG_BYTES:
        return
    for index in range(LOGS_KEPT - 1, 0, -1):
        older = f"{log}.{index}"
        if os.path.exists(older):
            os.replace(older, f"{log}.{index + 1}")
    shutil.copyfile(log, f"{log}.1")
    os.truncate(log, 0)


def code_of(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


class Stop(Exception):
    """SIGTERM arrived."""


def on_term(_number: int, _frame: object) -> None:
    raise Stop


def run(folder: str) -> None:
    """The supervisor itself; returns when the service has ended for good."""
    lock = open(os.path.join(folder, "supervisor.lock"), "w")  # noqa: SIM115 - held until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, on_term)
    me = {"supervisor": os.getpid(), "supervisor_started": start_time(os.getpid())}
    starts: list[float] = []
    restarts = 0
    unit = effective(folder)
    patience = float(unit.get("stop_timeout_s", 120))
    try:
        while True:
            unit = effective(folder)
            patience = float(unit.get("stop_timeout_s", 120))
            starts = [t for t in starts if time.monotonic() - t < STARTS_WITHIN_S] + [time.monotonic()]
            try:
                child = launch(folder, unit)
            except OSError as error:
                write_state(folder, active="failed", since=time.time(), exit_code=127, detail=str(error), **me)
                return
            write_state(
                folder,
                active="active",
                main_pid=child.pid,
                main_started=start_time(child.pid),
                session=child.pid,
                since=time.time(),
                restarts=restarts,
                release=unit.get("release", ""),
                **me,
            )
            code = watch(folder, child.pid)
            end_all(lambda: family(os.getpid()), 5.0)
            detail = f"ended with exit code {code}"
            if code == 0 or unit.get("restart") == "no" or len(starts) >= STARTS_ALLOWED:
                active = "inactive" if code == 0 else "failed"
                write_state(folder, active=active, since=time.time(), exit_code=code, restarts=restarts, detail=detail)
                return
            restarts += 1
            write_state(
                folder, active="activating", since=time.time(), exit_code=code, restarts=restarts, detail=detail, **me
            )
            time.sleep(float(unit.get("restart_s", 5)))
    except Stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        clean = end_all(lambda: family(os.getpid()), patience)
        write_state(
            folder,
            active="inactive" if clean else "failed",
            since=time.time(),
            exit_code=0,
            restarts=restarts,
            detail="stopped" if clean else "some processes could not be ended",
        )


def watch(folder: str, pid: int) -> int:
    """Wait for the main process, reaping its orphans and rotating the log meanwhile."""
    ticks = 0
    while pid not in ENDED:
        reap()
        ticks += 1
        if ticks % 100 == 0:
            rotate(folder)
        if pid not in ENDED:
            time.sleep(0.05)
    return code_of(ENDED.pop(pid))


def status(folder: str) -> dict[str, Any]:
    state = read_json(folder, "state.json") or {"active": "inactive"}
    if state.get("active") not in ("active", "activating"):
        return state
    supervised = same(state.get("supervisor"), state.get("supervisor_started"))
    if supervised:
        return state
    if same(state.get("main_pid"), state.get("main_started")):
        return {**state, "detail": "runs without its supervisor, which was killed; restart it"}
    return {**state, "active": "failed", "main_pid": 0, "detail": "its supervisor was killed or the host was rebooted"}


def stop(folder: str) -> dict[str, Any]:
    state = read_json(folder, "state.json")
    patience = float(effective(folder).get("stop_timeout_s", 120))
    if same(state.get("supervisor"), state.get("supervisor_started")):
        os.kill(state["supervisor"], signal.SIGTERM)
        deadline = time.monotonic() + patience + 15
        while same(state["supervisor"], state["supervisor_started"]):
            if time.monotonic() > deadline:
                sys.exit(f"the supervisor (pid {state['supervisor']}) did not end in time")
            time.sleep(0.02)
    elif same(state.get("main_pid"), state.get("main_started")):
        main, session = state["main_pid"], state.get("session")
        known = family(main, session) | {main}
        if not end_all(lambda: {pid for pid in known | family(main, session) if start_time(pid)}, patience):
            sys.exit("some processes of the service could not be ended")
        write_state(folder, active="inactive", since=time.time(), exit_code=0, detail="stopped")
    return status(folder)


def start(folder: str) -> dict[str, Any]:
    now = status(folder)
    if now.get("active") in ("active", "activating") and same(now.get("supervisor"), now.get("supervisor_started")):
        return now
    stop(folder)
    before = read_json(folder, "state.json").get("since", 0)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            quiet = os.open(os.devnull, os.O_RDWR)
            errors = os.open(os.path.join(folder, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(quiet, 0)
            os.dup2(quiet, 1)
            os.dup2(errors, 2)
            os.environ.pop("ORCHESTRATE_CALL", None)
            # A new image: the mark of the call that started us must not stay readable in /proc/PID/environ.
            os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), "run", folder])
        os._exit(0)
    os.wait()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        now = status(folder)
        if now.get("since", 0) > before and now.get("active") != "inactive":
            return now
        time.sleep(0.02)
    return status(folder)


def main() -> None:
    verb, folder = sys.argv[1], os.path.abspath(sys.argv[2])
    if verb == "run":
        run(folder)
        return
    print(json.dumps({"start": start, "stop": stop, "status": status}[verb](folder)))


if __name__ == "__main__":
    main()
