"""How systemd defines and runs a unit, exactly (words of a command stay apart): {"unit": NAME, "user": bool}.

Asks over D-Bus with busctl, since `systemctl show` joins the words of a command. Prints null for an unknown unit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

BUS = "org.freedesktop.systemd1"
UNIT = BUS + ".Unit"
SERVICE = BUS + ".Service"


def busctl(scope: list[str], *words: str) -> Any:
    done = subprocess.run(["busctl", *scope, "--json=short", *words], capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode("utf-8", "replace").strip())
    return [json.loads(line)["data"] for line in done.stdout.decode().splitlines() if line]


def properties(scope: list[str], path: str, interface: str, names: list[str]) -> dict[str, Any]:
    return dict(zip(names, busctl(scope, "get-property", BUS, path, interface, *names)))  # noqa: B905 - Python 3.8


def text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def main() -> None:
    wish: dict[str, Any] = json.loads(sys.argv[1])
    scope = ["--user"] if wish.get("user") else []
    try:
        path = busctl(scope, "call", BUS, "/org/freedesktop/systemd1", BUS + ".Manager", "LoadUnit", "s", wish["unit"])
    except (RuntimeError, OSError) as error:
        sys.exit(f"systemd cannot be asked ({error}); is it PID 1 there, and is dbus running?")
    path = path[0][0]
    wanted = ["LoadState", "FragmentPath", "DropInPaths", "ActiveState", "SubState", "StateChangeTimestamp"]
    unit = properties(scope, path, UNIT, [*wanted, "NeedDaemonReload", "UnitFileState"])
    if unit["LoadState"] == "not-found":
        print("null")
        return
    wanted = [
        "ExecStart",
        "Environment",
        "EnvironmentFiles",
        "WorkingDirectory",
        "User",
        "MainPID",
        "NRestarts",
        "Result",
    ]
    service = properties(scope, path, SERVICE, [*wanted, "ExecMainCode", "ExecMainStatus"])
    files = [name for name in [unit["FragmentPath"], *unit["DropInPaths"]] if name]
    facts = {
        "load_state": unit["LoadState"],
        "argv": service["ExecStart"][0][1] if service["ExecStart"] else [],
        "environment": service["Environment"],
        "environment_files": [("-" if optional else "") + name for name, optional in service["EnvironmentFiles"]],
        "cwd": service["WorkingDirectory"],
        "user": service["User"],
        "fragment": unit["FragmentPath"],
        "enabled": unit["UnitFileState"],
        "texts": {name: text(name) for name in files},
        "active": unit["ActiveState"],
        "sub": unit["SubState"],
        "since": unit["StateChangeTimestamp"] / 1e6,
        "main_pid": service["MainPID"],
        "restarts": service["NRestarts"],
        "result": service["Result"],
        "exit_code": service["ExecMainStatus"] if service["ExecMainCode"] else None,
        "exit_kind": service["ExecMainCode"],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
