"""One graph on several hosts: which, in what order, how many at a time, where it stops and where it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ExitCode, UsageError
from orchestrator.fleet import Fleet, FleetRun, chosen_hosts, find_fleet, fleet_rows, worst
from orchestrator.hosts.load import load_inventory
from orchestrator.hosts.secrets import Masker
from orchestrator.store.records import RunState
from orchestrator.store.store import Store, open_store

HOSTS = ("a", "b", "c", "d", "e")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'state.db'}") as opened:
        yield opened


@dataclass
class Process:
    """A run of one host that ends at the third look, with the code that the test gave it."""

    site: Site
    host: str
    new: bool
    looks: int = 0
    interrupted: bool = False

    @property
    def exit_code(self) -> int | None:
        self.looks += 1
        if self.looks < 3 and not self.interrupted:
            return None
        return self.site.end(self)

    def document(self) -> Mapping[str, Any]:
        return {"error": "boom"} if self.site.codes.get(self.host) else {}

    def interrupt(self) -> None:
        self.interrupted = True


@dataclass
class Site:
    """Where the processes of a fleet run "happen": it notes who began, who resumed, and how many ran at once."""

    store: Store
    fleet: Fleet
    codes: dict[str, int] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    together: list[set[str]] = field(default_factory=list)
    now: set[str] = field(default_factory=set)

    def start(self, host: str, new: bool) -> Process:
        (self.began if new else self.resumed).append(host)
        if new:
            self.store.runs.create(self.fleet.run_id(host), self.fleet.graph, host, "definition", {})
        self.now.add(host)
        self.together.append(set(self.now))
        return Process(self, host, new)

    def end(self, process: Process) -> int:
        self.now.discard(process.host)
        code = ExitCode.INTERRUPTED if process.interrupted else self.codes.get(process.host, 0)
        state = RunState.COMPLETED if code in (0, 9) else RunState.FAILED
        self.store.runs.finish(self.fleet.run_id(process.host), state, int(code), "")
        return int(code)


def site(store: Store, at_once: int = 2, **codes: int) -> Site:
    fleet = Fleet("f1", "deploy-ddtree", HOSTS, at_once)
    fleet.keep(store, str)
    return Site(store, fleet, dict(codes))


def carry_out(at: Site) -> ExitCode:
    return FleetRun(at.store, at.fleet, at.start, lambda _text: None).carry_out()


def test_hosts_that_come_later_get_the_settings_with_which_it_was_begun(store: Store) -> None:
    Fleet("f2", "bench", HOSTS, 1, {"pairs": "3", "note": "key sesame-opens"}).keep(store, Masker(["sesame-opens"]))
    found = find_fleet(store, "f2")
    assert found is not None
    assert found.settings == {"pairs": "3", "note": "key [secret]"}


def test_the_first_host_is_alone_and_the_others_are_bounded(store: Store) -> None:
    at = site(store, 2, c=9)
    assert carry_out(at) is ExitCode.NOT_ADOPTED
    assert at.began == list(HOSTS)
    assert at.together[0] == {"a"}
    assert at.together[1] == {"b"}
    assert max(len(running) for running in at.together) == 2


def test_a_failing_canary_keeps_every_other_host_untouched(store: Store) -> None:
    at = site(store, 3, a=4)
    assert carry_out(at) is ExitCode.ROLLED_BACK
    assert at.began == ["a"]
    assert [row["state"] for row in fleet_rows(store, at.fleet)] == ["failed", *["not started"] * 4]


def test_it_stops_at_the_first_failure_and_resumes_there(store: Store) -> None:
    at = site(store, 1, c=1)
    assert carry_out(at) is ExitCode.FAILED_UNCHANGED
    assert at.began == ["a", "b", "c"]
    again = Site(store, at.fleet)
    assert carry_out(again) is ExitCode.DONE
    assert (again.resumed, again.began) == (["c"], ["d", "e"])


def test_a_failure_lets_the_hosts_beside_it_come_to_their_end(store: Store) -> None:
    at = site(store, 2, b=1)
    assert carry_out(at) is ExitCode.FAILED_UNCHANGED
    assert at.began == ["a", "b", "c"]
    assert fleet_rows(store, at.fleet)[2]["exit_code"] == 0


def test_ctrl_c_reaches_every_running_host_and_nothing_else_begins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = site(store, 2)
    waits = iter(range(100))

    def wait(_seconds: float) -> None:
        if next(waits) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.fleet.time.sleep", wait)
    assert carry_out(at) is ExitCode.INTERRUPTED
    assert at.began[0] == "a"
    assert len(at.began) <= 3


def test_ctrl_c_while_a_host_begins_reaches_those_that_run(store: Store) -> None:
    at = site(store, 3)
    started: list[Process] = []

    def start(host: str, new: bool) -> Process:
        if host == "c":
            raise KeyboardInterrupt
        started.append(at.start(host, new))
        return started[-1]

    assert FleetRun(store, at.fleet, start, lambda _text: None).carry_out() is ExitCode.INTERRUPTED
    assert [(run.host, run.interrupted) for run in started] == [("a", False), ("b", True)]


def test_a_fleet_is_found_again_by_id_and_as_the_newest(store: Store) -> None:
    at = site(store)
    assert find_fleet(store, "f1") == find_fleet(store, "last") == at.fleet
    assert find_fleet(store, "f1", "smoke") is None
    assert find_fleet(store, "f2") is None


def test_groups_and_names_become_hosts_each_once(tmp_path: Path) -> None:
    lines = "".join(f"  {name}: {{address: {name}, model: {{target: /t, draft: /d}}}}\n" for name in HOSTS)
    (tmp_path / "hosts.yaml").write_text(f"hosts:\n{lines}groups: {{prod: [c, b]}}\n")
    inventory = load_inventory(tmp_path / "hosts.yaml")
    assert chosen_hosts(inventory, ["group:prod", "a", "b"]) == ["c", "b", "a"]
    with pytest.raises(UsageError, match=r"no group 'pord'.*known groups: prod"):
        chosen_hosts(inventory, ["group:pord"])
    with pytest.raises(UsageError, match="no host 'z'"):
        chosen_hosts(inventory, ["a", "z"])


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 9], 9), ([9, 1, 0], 1), ([4, 1], 4), ([5, 4, 130], 5), ([130, 9], 130), ([77], 1), ([0, 77], 1)],
)
def test_the_worst_code_stands_for_all(codes: list[int], expected: int) -> None:
    assert worst(codes) == expected
