"""The lock on the host itself: two operators with stores of their own, a killed run, expiry, a theft with its reason."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator import operations
from orchestrator.cli import main
from orchestrator.errors import ExitCode
from orchestrator.graph.model import Action, Evidence, GraphSpec, Probe, TaskContext, TaskSpec
from orchestrator.graph.runner import Runner, RunResult
from orchestrator.hosts import lock
from orchestrator.hosts.guard import host_guard
from orchestrator.hosts.inventory import Inventory
from orchestrator.hosts.load import load_inventory
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.store.records import RunState
from orchestrator.store.store import open_store
from orchestrator.transport.embedded import remove_embedded

PATIENCE_S = 60.0
HOSTS = "hosts:\n  local: {transport: embedded, model: {target: /t, draft: /d}}\n"


class Write(Action):
    """Looks at the host, then changes it: `during` is called in the middle."""

    def __init__(self, during: Callable[[TaskContext], object] = lambda ctx: None) -> None:
        self._during = during

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, f"{ctx.host.home} was not written")

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        self._during(ctx)
        ctx.host.transport.run(["touch", f"{ctx.host.home}/written-by-{ctx.run_id}"], check=True)
        return {}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("looked", "written")

    def undo(self, ctx: TaskContext) -> None:
        ctx.host.transport.run(["rm", "-f", f"{ctx.host.home}/written-by-{ctx.run_id}"], check=True)


class Operator:
    """One person with a store of their own."""

    def __init__(self, home: Path, inventory: Inventory, name: str) -> None:
        self.store = open_store(f"sqlite:///{home / name}.db")
        self.place = operations.Workplace(home, inventory, self.store)

    def run(
        self, during: Callable[[TaskContext], object] = lambda ctx: None, *, occupies: bool = False, **options: Any
    ) -> RunResult:
        spec = graph(during, occupies)
        return operations.run_graph(self.place, spec, self.place.inventory.hosts["local"], {}, **options)

    def run_beating(self, during: Callable[[TaskContext], object], beat_s: float) -> RunResult:
        def guard(session: Any) -> Any:
            return host_guard(session, ttl_s=600, beat_s=beat_s)

        return Runner(self.store, graph(during), self.place.session, host="local", guard=guard).run()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.store.events.latest(200)]


def graph(during: Callable[[TaskContext], object], occupies: bool = False) -> GraphSpec:
    task = TaskSpec("write", "Write", "patch", Write(during), changes_host=not occupies, occupies_host=occupies)
    return GraphSpec("write", (task,))


def until_stopped(ctx: TaskContext) -> None:
    waiter = threading.Event()
    for _ in range(int(PATIENCE_S * 20)):
        ctx.check_cancelled()
        waiter.wait(0.05)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    yield tmp_path
    remove_embedded(tmp_path, "local")


@pytest.fixture
def inventory(home: Path) -> Inventory:
    return load_inventory(home / "hosts.yaml")


@pytest.fixture
def ada(home: Path, inventory: Inventory) -> Iterator[Operator]:
    operator = Operator(home, inventory, "ada")
    yield operator
    operator.store.close()


@pytest.fixture
def bo(home: Path, inventory: Inventory) -> Iterator[Operator]:
    operator = Operator(home, inventory, "bo")
    yield operator
    operator.store.close()


@pytest.fixture
def host(home: Path, inventory: Inventory) -> Iterator[HostSession]:
    with open_session(inventory.hosts["local"], home) as session:
        yield session


def test_two_stores_cannot_change_one_host_at_once(ada: Operator, bo: Operator, host: HostSession) -> None:
    refused: list[RunResult] = []
    first = ada.run(lambda ctx: refused.append(bo.run()))
    assert first.exit_code == ExitCode.DONE, first.reason
    (second,) = refused
    assert (second.exit_code, second.state) == (ExitCode.LOCKED, RunState.FAILED)
    assert f"run {first.run_id}" in second.reason
    assert "lock steal --reason" in second.reason
    assert not second.tasks[0].began
    assert "rollback.started" not in bo.kinds()
    assert sorted(path.name for path in Path(host.home).glob("written-by-*")) == [f"written-by-{first.run_id}"]
    assert lock.lock_status(host.releases) is None  # given back
    again = bo.run(resume=second.run_id)
    assert again.exit_code == ExitCode.DONE, again.reason


def test_a_task_that_only_occupies_the_host_holds_it_too(ada: Operator, bo: Operator) -> None:
    refused: list[RunResult] = []
    assert ada.run(lambda ctx: refused.append(bo.run()), occupies=True).exit_code == ExitCode.DONE
    assert ada.run(lambda ctx: refused.append(bo.run(occupies=True))).exit_code == ExitCode.DONE
    assert [one.exit_code for one in refused] == [ExitCode.LOCKED] * 2


def test_whoever_comes_back_after_another_run_had_the_host_changes_nothing_more(ada: Operator, bo: Operator) -> None:
    """A laptop that slept: the lock expired, another run came and went, and only then does the connection return."""

    def sleep(ctx: TaskContext) -> None:
        path = Path(ctx.host.releases.layout.lock)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"until": 0, "process": ""}))
        assert bo.run().exit_code == ExitCode.DONE
        ctx.host.transport.connect().close()

    slept = ada.run(sleep)
    assert (slept.exit_code, slept.state) == (ExitCode.LOCKED, RunState.INTERRUPTED)
    assert "was taken by another run" in slept.reason
    assert "rollback.started" not in ada.kinds()


def test_a_connection_that_broke_alone_is_no_reason_to_stop(ada: Operator) -> None:
    result = ada.run(lambda ctx: ctx.host.transport.connect().close())
    assert result.exit_code == ExitCode.DONE, result.reason


def test_commands_that_delete_wait_for_no_run(home: Path, ada: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, Any]] = []

    def call(*words: str) -> None:
        state = f"sqlite:///{home}/bo.db"
        main.run([*words, "--yes", "--json", "--hosts", str(home / "hosts.yaml"), "--state", state])
        found.append(json.loads(capsys.readouterr().out))

    assert ada.run(lambda ctx: call("releases", "prune")).exit_code == ExitCode.DONE
    call("releases", "prune")
    assert [one["exit_code"] for one in found] == [ExitCode.LOCKED, ExitCode.DONE]


def test_a_failed_run_gives_the_lock_back(ada: Operator, host: HostSession) -> None:
    def fail(ctx: TaskContext) -> None:
        assert lock.lock_status(host.releases) is not None
        raise ValueError("no luck")

    assert ada.run(fail).exit_code == ExitCode.ROLLBACK_UNVERIFIED  # the graph has no check of its own
    assert lock.lock_status(host.releases) is None


KILLED = """
    import os, sys
    from pathlib import Path
    from orchestrator.hosts.load import load_inventory
    from tests.release.test_host_guard import Operator
    home = Path(sys.argv[1])
    operator = Operator(home, load_inventory(home / "hosts.yaml"), "ada")
    operator.run(lambda ctx: os.kill(os.getpid(), 9), run_id="r-killed")
"""


def test_a_killed_run_is_resumed_and_taken_over_at_once(
    home: Path, inventory: Inventory, bo: Operator, host: HostSession
) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(home)], timeout=200)
    assert done.returncode == -signal.SIGKILL
    held = lock.lock_status(host.releases)
    assert held is not None
    assert held.run_id == "r-killed"
    other = bo.run()  # another store: the process is known to have ended on this machine
    assert other.exit_code == ExitCode.DONE, other.reason
    assert "lock.taken_over" in bo.kinds()
    ada = Operator(home, inventory, "ada")
    resumed = ada.run(resume="r-killed")
    assert resumed.exit_code == ExitCode.DONE, resumed.reason
    ada.store.close()


def test_the_own_store_knows_that_a_run_is_dead_and_no_other_does(
    ada: Operator, bo: Operator, host: HostSession
) -> None:
    past = ada.run()
    lock.take(host.releases, past.run_id)  # its release never arrived, and its machine is another one
    forget_process(host)
    refused = bo.run()
    assert refused.exit_code == ExitCode.LOCKED
    assert past.run_id in refused.reason
    following = ada.run()
    assert following.exit_code == ExitCode.DONE, following.reason
    assert lock.lock_status(host.releases) is None


def test_a_lock_without_heartbeat_expires(bo: Operator, host: HostSession) -> None:
    lock.take(host.releases, "r-far-away", ttl_s=600)
    forget_process(host)
    assert bo.run().exit_code == ExitCode.LOCKED
    path = Path(host.releases.layout.lock)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"until": 0}))
    assert bo.run().exit_code == ExitCode.DONE


def test_a_theft_over_the_command_line_needs_a_reason_stops_the_run_and_is_recorded(
    home: Path, ada: Operator, bo: Operator, host: HostSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        main.run(["lock", *words, "--json", "--hosts", str(home / "hosts.yaml"), "--state", f"sqlite:///{home}/bo.db"])
        return dict(json.loads(capsys.readouterr().out))

    seen: list[dict[str, Any]] = []

    def stolen(ctx: TaskContext) -> None:
        seen.append(call("status"))
        seen.append(call("steal", "--reason", " ", "--yes"))
        seen.append(call("steal", "--reason", "ada is on holiday", "--yes"))
        until_stopped(ctx)

    lost = ada.run_beating(stolen, 0.1)
    assert (lost.exit_code, lost.state) == (ExitCode.LOCKED, RunState.INTERRUPTED)
    assert "ada is on holiday" in lost.reason
    assert "rollback.started" not in ada.kinds()
    held, without_reason, taken = seen
    assert held["run_id"] == taken["run_id"] == lost.run_id
    assert "reason" in without_reason["error"]
    (event,) = bo.store.events.latest(1, None, None, ("lock.stolen",))
    assert (event.data["run"], event.data["reason"]) == (lost.run_id, "ada is on holiday")
    assert call("status")["owner"] is None
    assert bo.run().exit_code == ExitCode.DONE


def test_a_beat_brings_back_a_lock_that_expired_while_the_connection_was_away(host: HostSession) -> None:
    lock.take(host.releases, "r-one", ttl_s=0)
    assert lock.lock_status(host.releases) is None
    assert lock.renew(host.releases, "r-one") == ""
    lock.steal(host.releases, "r-two", "it sleeps", ttl_s=0)
    assert "it sleeps" in lock.renew(host.releases, "r-one")


def test_only_a_free_lock_is_forgotten(host: HostSession) -> None:
    path = Path(host.releases.layout.lock)
    lock.take(host.releases, "r-one")
    assert not lock.forget(host.releases)
    assert lock.renew(host.releases, "r-one") == ""
    lock.release(host.releases, "r-one")
    assert lock.forget(host.releases)
    assert list(path.parent.glob(f"{path.name}*")) == []


def test_whoever_waits_while_the_lock_is_forgotten_takes_the_new_one(host: HostSession) -> None:
    path = Path(host.releases.layout.lock)
    gate = path.with_name(f"{path.name}.flock")
    lock.lock_status(host.releases)
    with ThreadPoolExecutor(1) as pool:
        with gate.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            taken = pool.submit(lock.take, host.releases, "r-one")
            deadline = time.monotonic() + PATIENCE_S
            while f":{gate.stat().st_ino} " not in waiting_for_locks():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            gate.unlink()
        assert taken.result(PATIENCE_S) is None
    assert gate.exists(), "or the next one would not meet this one's lock"
    assert lock.renew(host.releases, "r-one") == ""


def waiting_for_locks() -> str:
    """The kernel's lines about locks that somebody waits for."""
    return "".join(line for line in Path("/proc/locks").read_text().splitlines(True) if "->" in line)


def forget_process(host: HostSession) -> None:
    """The lock as an operator of another machine would have left it."""
    path = Path(host.releases.layout.lock)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"process": ""}))
