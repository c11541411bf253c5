"""Sends new connections for a service's port to an engine that stands in: one nft table of our own, as this JSON says.

{"verb", "table", "service", "side", "direct", "unit"}; ports: the service's own, the stand-in's, and a third one that
leads past the redirection to the service itself. Verbs: check (may it be used? {"why"}) · on · again (on, if the
stand-in answers) · lift (new connections reach the service) · hold ("limit_s": until the service itself answers) · end
(lift, let the stand-in's connections end within "drain_s", stop it, delete the table) · off · state · connections ("port").
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

NFT = shutil.which("nft", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
POLL_S = 0.2
OPEN = ("01", "08")  # established, and closed by the client only
LISTENING = "0A"
# Only what opens a connection: packets of connections from before the table was there must stay as they are.
NEW = "fib daddr type local tcp flags & (fin|syn|rst|ack) == syn tcp dport"


class Unusable(Exception):
    """A sentence for the person who reads the plan."""


def nft(*words: str, text: str = "") -> str:
    if NFT is None:
        raise Unusable("the host has no nft program")
    done = subprocess.run([NFT, *words], input=text, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["exit code " + str(done.returncode)]
        raise Unusable("nft refuses: " + lines[0][:200])
    return done.stdout


def lifted(wish: dict[str, Any]) -> list[str]:
    """Only the way past is left in the table.

    It stays while the table does: without any rule of this kind the kernel would stop translating the connections that
    the stand-in still has.
    """
    table = "inet " + wish["table"]
    return [f"flush table {table}", f"add rule {table} inside {NEW} {wish['direct']} dnat to :{wish['service']}"]


def diverted(wish: dict[str, Any]) -> list[str]:
    """Makes the table, or replaces everything in it, in one transaction."""
    table = "inet " + wish["table"]
    return [
        f"add table {table}",
        f"add chain {table} outside {{ type nat hook prerouting priority -110; policy accept; }}",
        f"add chain {table} inside {{ type nat hook output priority -110; policy accept; }}",
        *lifted(wish),
        *(
            f"add rule {table} {chain} {NEW} {wish['service']} dnat to :{wish['side']}"
            for chain in ("outside", "inside")
        ),
    ]


def load(lines: list[str], *words: str) -> None:
    nft(*words, "-f", "-", text="\n".join(lines) + "\n")


def state(wish: dict[str, Any]) -> str:
    if NFT is None:
        return "off"
    try:
        text = nft("list", "table", "inet", wish["table"])
    except Unusable:
        return "off"
    return "on" if f"dport {wish['service']} " in text else "lifted"


def check(wish: dict[str, Any]) -> str:
    """Why it cannot be used, '' if it can. The kernel looks at every rule and keeps none."""
    taken = [str(port) for port in (wish["side"], wish["direct"]) if connections(port, (LISTENING,))]
    if taken and not active(wish["unit"]):
        return f"port {taken[0]} is taken"
    try:
        load(diverted(wish), "-c")
        return "" if wish.get("filtered") else filtering(nft("list", "ruleset"), wish["side"])
    except Unusable as why:
        return str(why)


def filtering(ruleset: str, side: int) -> str:
    """A packet filter sees the stand-in's port, not the service's, and might drop what the service's port gets."""
    chain, legacy = "", ""
    lines = [line.strip() for line in ruleset.splitlines()]
    for line, following in zip(lines, [*lines[1:], ""]):  # noqa: B905 - Python 3.8
        chain = line.split()[1] if line.startswith("chain ") else chain
        if line.startswith("type filter hook input") and ("policy drop" in line or following != "}"):
            return f"the host filters incoming connections (nft chain {chain}) and might not let port {side} through"
    with contextlib.suppress(OSError), open("/proc/net/ip_tables_names", encoding="ascii") as file:
        legacy = file.read()
    if "filter" in legacy.split():
        return f"the host filters incoming connections (iptables) and might not let port {side} through"
    return ""


def answers(port: int) -> bool:
    """Whether an engine on this port says that it is well, or at least speaks HTTP without complaint of its own."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"http://127.0.0.1:{port}/health", timeout=10).close()
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False
    return True


def connections(port: int, states: tuple[str, ...] = OPEN) -> int:
    """Connections that a process on this port still has, by the kernel's own list."""
    found = 0
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
            found += sum(1 for row in rows if int(row[1].rsplit(":", 1)[1], 16) == port and row[3] in states)
    return found


def active(unit: str) -> bool:
    return subprocess.run(["systemctl", "is-active", "-q", unit], check=False).returncode == 0


def until(true: Any, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not true() and time.monotonic() < end:
        time.sleep(POLL_S)


def on(wish: dict[str, Any]) -> None:
    """A stand-in that ended before the table was there could not lift it: who turns it on looks once more."""
    load(diverted(wish))
    if not active(wish["unit"]):
        lift(wish)
        raise Unusable(wish["unit"] + " has ended")


def again(wish: dict[str, Any]) -> None:
    if active(wish["unit"]) and answers(wish["side"]):
        with contextlib.suppress(Unusable):
            on(wish)


def lift(wish: dict[str, Any]) -> None:
    if state(wish) == "on":
        load(lifted(wish))


def hold(wish: dict[str, Any]) -> None:
    """Where nothing is diverted any more nothing is held: the stand-in has ended, and lifted the table with it."""
    until(lambda: state(wish) != "on" or answers(wish["direct"]), wish["limit_s"])


def end(wish: dict[str, Any]) -> None:
    lift(wish)
    if active(wish["unit"]):
        until(lambda: not connections(wish["side"]), wish["drain_s"])
        subprocess.run(["systemctl", "--no-block", "stop", wish["unit"]], check=False)
    off(wish)


def off(wish: dict[str, Any]) -> None:
    if state(wish) != "off":
        try:
            nft("delete", "table", "inet", wish["table"])
        except Unusable:
            if state(wish) != "off":
                raise


def main() -> None:
    wish = json.loads(sys.argv[1])
    verb = wish["verb"]
    answer: dict[str, Any] = {}
    if verb == "check":
        answer = {"why": check(wish)}
    elif verb == "connections":
        answer = {"open": connections(wish["port"])}
    elif verb != "state":
        {"on": on, "again": again, "lift": lift, "hold": hold, "end": end, "off": off}[verb](wish)
    print(json.dumps({**answer, "state": state(wish)}))


if __name__ == "__main__":
    try:
        main()
    except Unusable as problem:
        sys.exit(str(problem))
