"""One graph on several hosts: the first one alone, then a bounded number at a time; stops at the first failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.documents import SUCCESS
from orchestrator.errors import ExitCode, UsageError
from orchestrator.hosts.inventory import Inventory
from orchestrator.hosts.load import select_host
from orchestrator.store.jsontext import Mask, masked
from orchestrator.store.records import RunRecord, RunState
from orchestrator.store.store import Store

POLL_S = 0.1
GROUP_MARK = "group:"
FACT = "fleet"
# Of several exit codes the one that needs a person soonest.
WORST_FIRST = (
    ExitCode.ROLLBACK_UNVERIFIED, ExitCode.ROLLED_BACK, ExitCode.FAILED_UNCHANGED, ExitCode.UNREACHABLE,
    ExitCode.LOCKED, ExitCode.PLAN_STALE, ExitCode.BENCH_INVALID, ExitCode.USAGE, ExitCode.INTERRUPTED,
    ExitCode.NOT_ADOPTED, ExitCode.DONE,
)  # fmt: skip


def chosen_hosts(inventory: Inventory, names: Sequence[str]) -> list[str]:
    """The hosts behind `NAME` and `group:NAME`, in this order, each once; UsageError for one that is not there."""
    found: list[str] = []
    for name in names:
        if name.startswith(GROUP_MARK):
            group = name.removeprefix(GROUP_MARK)
            if group not in inventory.groups:
                known = ", ".join(inventory.groups) or "none"
                raise UsageError(f"There is no group {group!r} in {inventory.path}; known groups: {known}.")
            found += inventory.groups[group]
        else:
            found.append(select_host(inventory, name).name)
    return list(dict.fromkeys(found))


def worst(codes: Sequence[int]) -> ExitCode:
    """The exit code that stands for several; a code that is none of ours (a killed process) counts as failed."""
    known = {code if code in set(ExitCode) else ExitCode.FAILED_UNCHANGED for code in codes}
    return next((code for code in WORST_FIRST if code in known), ExitCode.DONE)


@dataclass(frozen=True)
class Fleet:
    """What a run over several hosts is: kept in the store under its id, so that it can be resumed."""

    id: str
    graph: str
    hosts: tuple[str, ...]
    at_once: int
    settings: Mapping[str, str] = field(
        default_factory=dict
    )  # with which it was begun; hosts that come later get them too

    def run_id(self, host: str) -> str:
        return f"{self.id}.{host}"

    def keep(self, store: Store, mask: Mask) -> None:
        """Into the store, without secrets."""
        settings = masked(dict(self.settings), mask)
        kept = {"graph": self.graph, "hosts": list(self.hosts), "at_once": self.at_once, "settings": settings}
        store.facts.add(FACT, self.id, kept)

    def record(self, store: Store, host: str) -> RunRecord | None:
        """The run on one host; None before it began."""
        try:
            found = store.runs.get(self.run_id(host))
        except UsageError:
            return None
        return found if found.id == self.run_id(host) else None

    def is_done(self, store: Store, host: str) -> bool:
        found = self.record(store, host)
        return found is not None and found.state is RunState.COMPLETED and found.exit_code in SUCCESS


def find_fleet(store: Store, wanted: str, graph: str | None = None) -> Fleet | None:
    """A fleet run by its id, or the newest one for `last`; None when there is none."""
    fact = store.facts.latest(FACT, None if wanted == "last" else wanted)
    if fact is None or (graph is not None and fact.data["graph"] != graph):
        return None
    data = fact.data
    return Fleet(fact.key, data["graph"], tuple(data["hosts"]), int(data["at_once"]), data.get("settings", {}))


class HostProcess(Protocol):
    """The process that carries out the run of one host."""

    @property
    def exit_code(self) -> int | None: ...

    def document(self) -> Mapping[str, Any]: ...

    def interrupt(self) -> None: ...


@dataclass
class FleetRun:
    """Carries a fleet run out, each host in a process of its own; `say` is told what happens."""

    store: Store
    fleet: Fleet
    start: Callable[[str, bool], HostProcess]
    say: Callable[[str], None]
    codes: dict[str, int] = field(default_factory=dict)
    running: dict[str, HostProcess] = field(default_factory=dict)
    seen: dict[tuple[str, str], str] = field(default_factory=dict)
    interrupted: bool = False

    def carry_out(self) -> ExitCode:
        """The worst exit code. Hosts that succeeded before are left alone; after a failure no further host begins."""
        left = [host for host in self.fleet.hosts if not self._skipped(host)]
        canary = bool(left) and left[0] == self.fleet.hosts[0]
        while self.running or (left and not self._failed()):
            limit = 1 if canary and self.fleet.hosts[0] not in self.codes else self.fleet.at_once
            try:
                while left and len(self.running) < limit and not self._failed():
                    self._begin(left.pop(0))
                self._look()
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                self._interrupt()
        if self.interrupted:
            self.codes["(interrupted)"] = ExitCode.INTERRUPTED
        return worst(list(self.codes.values()))

    def _skipped(self, host: str) -> bool:
        if not self.fleet.is_done(self.store, host):
            return False
        record = self.fleet.record(self.store, host)
        self.codes[host] = int(record.exit_code or 0) if record else 0
        self.say(f"{host}: done before, left alone")
        return True

    def _begin(self, host: str) -> None:
        new = self.fleet.record(self.store, host) is None
        self.say(f"{host}: {'started' if new else 'resumed'} as {self.fleet.run_id(host)}")
        self.running[host] = self.start(host, new)

    def _failed(self) -> bool:
        return self.interrupted or any(code not in SUCCESS for code in self.codes.values())

    def _look(self) -> None:
        for host, run in list(self.running.items()):
            self._tell_tasks(host)
            code = run.exit_code
            if code is not None:
                del self.running[host]
                self.codes[host] = code
                document = run.document()
                reason = document.get("error") or (document.get("verdict") or {}).get("decision") or "done"
                self.say(f"{host}: exit {code}, {reason}")

    def _tell_tasks(self, host: str) -> None:
        if self.fleet.record(self.store, host) is None:
            return
        for task in self.store.tasks.list(self.fleet.run_id(host)):
            before = self.seen.get((host, task.key))
            if before != task.state.value:
                self.seen[host, task.key] = task.state.value
                if before is not None or task.state.value != "pending":
                    self.say(f"{host}: {task.key} {task.state.value}")

    def _interrupt(self) -> None:
        """Every host stops after its current effect, as with Ctrl-C in a run of one host."""
        self.interrupted = True
        self.say("interrupted: the hosts stop after their current effect")
        for run in self.running.values():
            run.interrupt()


def fleet_rows(store: Store, fleet: Fleet) -> list[dict[str, Any]]:
    """How each host of a fleet run stands, in the order of the fleet."""
    rows = []
    for host in fleet.hosts:
        record = fleet.record(store, host)
        rows.append({
            "host": host, "run_id": record.id if record else None,
            "state": record.state.value if record else "not started",
            "exit_code": record.exit_code if record else None, "reason": record.reason if record else "",
        })  # fmt: skip
    return rows
