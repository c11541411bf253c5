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
OPENS = "tcp flags & (fin|syn|rst|ack) == syn"
# A connection is what opened it: those from before the table was there are in no set and stay as they are.
FAMILIES = (("ip", "ipv4_addr"), ("ip6", "ipv6_addr"))
SETS = ("diverted", "past")


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


def made(table: str) -> list[str]:
    """The empty table. Ports are rewritten by the packet, since the kernel's own translation takes what it remembers of
    an earlier connection with the same ports for a new one: before it sees what comes in, and after it what goes out.
    """
    lines = [f"add table {table}"]
    for name, address in ((f"{one}_{ip}", kind) for one in SETS for ip, kind in FAMILIES):
        key = f"type {address} . {address} . inet_service"
        lines.append(f"add set {table} {name} {{ {key}; size 1048576; flags dynamic,timeout; timeout 1h; }}")
    return [
        *lines,
        f"add chain {table} outside {{ type filter hook prerouting priority -310; policy accept; }}",
        f"add chain {table} inside {{ type filter hook output priority -310; policy accept; }}",
        f"add chain {table} answers {{ type filter hook postrouting priority 310; policy accept; }}",
    ]


def rules(wish: dict[str, Any], divert: bool) -> list[str]:
    """Replaces every rule of the table. Without `divert` only connections that open from now on reach the service."""
    table, service, side, direct = "inet " + wish["table"], wish["service"], wish["side"], wish["direct"]
    lines = [f"flush chain {table} {chain}" for chain in ("outside", "inside", "answers")]
    lines.append(f'add rule {table} outside iifname "lo" accept')  # what the host sends itself was seen going out
    for ip, _ in FAMILIES:
        there, back = f"{ip} saddr . {ip} daddr . tcp sport", f"{ip} daddr . {ip} saddr . tcp dport"
        opening = f"fib daddr type local {OPENS} tcp dport"
        for chain in ("outside", "inside"):
            head = f"add rule {table} {chain}"
            verb = "update" if divert else "delete"
            lines += [
                f"{head} {opening} {service} {verb} @diverted_{ip} {{ {there} }}",
                f"{head} {opening} {service} delete @past_{ip} {{ {there} }}",
                f"{head} {opening} {side} delete @diverted_{ip} {{ {there} }}",
                f"{head} tcp dport {service} {there} @diverted_{ip} update @diverted_{ip} {{ {there} }} tcp dport set {side} accept",
            ]
        lines += [
            f"add rule {table} inside {opening} {direct} update @past_{ip} {{ {there} }}",
            f"add rule {table} inside tcp dport {direct} {there} @past_{ip} tcp dport set {service} accept",
            f"add rule {table} answers tcp sport {side} {back} @diverted_{ip} tcp sport set {service} accept",
            f"add rule {table} answers tcp sport {service} {back} @past_{ip} tcp sport set {direct} accept",
        ]
    return lines


def lifted(wish: dict[str, Any]) -> list[str]:
    """Connections that the stand-in has go on, and the way past stays."""
    return rules(wish, False)


def diverted(wish: dict[str, Any]) -> list[str]:
    """Makes the table where there is none, in one transaction."""
    return [*made("inet " + wish["table"]), *rules(wish, True)]


def load(lines: list[str], *words: str) -> None:
    nft(*words, "-f", "-", text="\n".join(lines) + "\n")


def state(wish: dict[str, Any]) -> str:
    if NFT is None:
        return "off"
    try:
        text = nft("list", "chain", "inet", wish["table"], "outside")
    except Unusable:
        return "off"
    return "on" if "update @diverted_ip { ip saddr . ip daddr . tcp sport }\n" in text else "lifted"


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
