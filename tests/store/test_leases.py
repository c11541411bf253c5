"""One writer per host, whatever happens to its owner or to the clock."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.errors import ExitCode, LockedError, UsageError
from orchestrator.store.process import ProcessName, current_process
from orchestrator.store.store import Store, open_store


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def timed(store_url: str, clock: Hand) -> Iterator[Store]:
    with open_store(store_url, clock=clock) as store:
        yield store


def pretend(store: Store, process: ProcessName) -> None:
    """The lease's holder is another process."""
    with store.transaction() as tx:
        tx.execute("UPDATE leases SET process = ?", (process.to_text(),))


def elsewhere() -> ProcessName:
    return replace(current_process(), machine="another")


def test_the_refusal_names_the_holder_and_the_way_out(timed: Store) -> None:
    timed.leases.acquire("gpu1", "ada@bench", "r7")
    with pytest.raises(LockedError, match=r"gpu1 is locked by ada@bench \(run r7\) since 2027.*lock steal") as error:
        timed.leases.acquire("gpu1", "bob@desk", "r8")
    assert error.value.exit_code == ExitCode.LOCKED
    timed.leases.acquire("gpu2", "bob@desk", "r8")  # another host is free
    assert [lease.host for lease in timed.leases.list()] == ["gpu1", "gpu2"]


def test_released_and_taken_again(timed: Store) -> None:
    first = timed.leases.acquire("gpu1", "ada", "r1")
    timed.leases.release(first)
    assert timed.leases.get("gpu1") is None
    second = timed.leases.acquire("gpu1", "bob", "r2")
    assert second.token > first.token
    timed.leases.release(first)  # an old owner cannot release the new one's lease
    assert timed.leases.get("gpu1") == second
    assert not timed.leases.heartbeat(first)
    assert timed.leases.heartbeat(second)


def test_a_holder_of_another_machine_expires_when_silent(timed: Store, clock: Hand) -> None:
    lease = timed.leases.acquire("gpu1", "ada", "r1", ttl_s=0.6)
    pretend(timed, elsewhere())
    clock.now += 0.5
    assert timed.leases.heartbeat(lease)
    clock.now += 0.59
    with pytest.raises(LockedError):
        timed.leases.acquire("gpu1", "bob", "r2")
    clock.now += 0.02
    assert timed.leases.acquire("gpu1", "bob", "r2").owner == "bob"
    assert not timed.leases.heartbeat(lease), "the old owner must notice that it lost the lease"


def test_a_dead_process_of_this_machine_holds_nothing(store_url: str) -> None:
    code = (
        "import os, sys; from orchestrator.store.store import open_store;"
        "open_store(sys.argv[1]).leases.acquire('gpu1', 'ada', 'r1', ttl_s=3600); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, store_url], timeout=120).returncode == -9
    with open_store(store_url) as store:
        assert store.leases.get("gpu1") is not None
        assert store.leases.acquire("gpu1", "bob", "r2").owner == "bob"


def test_a_living_process_of_this_machine_is_not_timed_out_by_the_clock(timed: Store, clock: Hand) -> None:
    timed.leases.acquire("gpu1", "ada", "r1", ttl_s=60)
    clock.now += 1e6
    with pytest.raises(LockedError):
        timed.leases.acquire("gpu1", "bob", "r2")


def test_after_the_clock_went_back_a_silent_holder_is_waited_out(timed: Store, clock: Hand) -> None:
    timed.leases.acquire("gpu1", "ada", "r1", ttl_s=0.3)
    pretend(timed, elsewhere())
    clock.now -= 365 * 86400
    with pytest.raises(LockedError):
        timed.leases.acquire("gpu1", "bob", "r2")
    assert timed.leases.acquire("gpu1", "bob", "r2", wait_s=20).owner == "bob"


def test_a_holder_whose_clock_is_behind_keeps_its_lock_while_its_heart_beats(timed: Store, store_url: str) -> None:
    end = threading.Event()
    with open_store(store_url, clock=lambda: 1_700_000_000.0) as behind:
        lease = behind.leases.acquire("gpu1", "ada", "r1", ttl_s=4)
        pretend(timed, elsewhere())

        def beat() -> None:
            while not end.wait(0.05):
                behind.leases.heartbeat(lease)

        heart = threading.Thread(target=beat)
        heart.start()
        try:
            held = timed.leases.get("gpu1")
            assert held is not None
            assert timed.leases.expired(held)
            with pytest.raises(LockedError, match="locked by ada"):
                timed.leases.acquire("gpu1", "bob", "r2")
        finally:
            end.set()
            heart.join()


def test_stealing_needs_a_reason_and_is_recorded(timed: Store) -> None:
    lease = timed.leases.acquire("gpu1", "ada", "r1")
    with pytest.raises(UsageError, match="needs a reason"):
        timed.leases.steal("gpu1", "bob", " ")
    assert timed.leases.steal("gpu1", "bob", "ada is on holiday").owner == "ada"
    assert not timed.leases.heartbeat(lease)
    (event,) = timed.events.latest(1, kinds=("lease.stolen",))
    assert event.data == {"host": "gpu1", "from": "ada", "by": "bob", "reason": "ada is on holiday"}
    with pytest.raises(UsageError, match="nobody holds"):
        timed.leases.steal("gpu1", "bob", "again")


def test_a_process_after_a_reboot_is_dead_and_one_of_another_container_unknown() -> None:
    here = current_process()
    assert here.alive() is True
    assert replace(here, boot="earlier").alive() is False
    assert replace(here, started="0").alive() is False
    assert replace(here, namespace="pid:[1]").alive() is None
    assert replace(here, machine="another").alive() is None
    assert ProcessName.from_text("{broken") is None
