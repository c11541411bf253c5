"""Several real processes on one store: no lost update, no error about locks, nothing half-written after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import psycopg
import pytest

from orchestrator.graph.model import State
from orchestrator.store.store import Store, open_store
from tests.store.conftest import add_run

WRITERS, ROUNDS = 4, 40

COUNT = """
    import sys
    from orchestrator.graph.model import State
    from orchestrator.store.store import open_store
    from orchestrator.store.tasks import StaleTask
    store, me, rounds = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    done = 0
    while done < rounds:
        task = store.tasks.get("r1", "a")
        value = (task.output or {"n": 0})["n"] + 1
        try:
            with store.transaction():
                store.tasks.change(task, State.IN_PROGRESS, output_json={"n": value})
                store.events.append("r1", "a", "counted", {"n": value, "by": me})
        except StaleTask:
            continue
        done += 1
"""

READ = """
    import sys, time
    from orchestrator.store.store import open_store
    store = open_store(sys.argv[1])
    seq = counted = 0
    while counted < int(sys.argv[2]):
        with store.snapshot():
            task, events = store.tasks.get("r1", "a"), store.events.tail(seq, kinds=("counted",))
            last = store.events.latest(1, kinds=("counted",))
        if last:
            assert task.output["n"] == last[0].data["n"], "a torn read"
        for event in events:
            counted += 1
            assert event.data["n"] == counted, f"expected {counted}, followed {event}"
            seq = event.seq
        time.sleep(0.002)  # a reader that never rests takes the processor that the writers need
"""

HANG = """
    import sys, time
    from orchestrator.store.store import open_store
    store = open_store(sys.argv[1])
    with store.transaction():
        store.events.append("r1", None, "half")
        print("holding", flush=True)
        time.sleep(600)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_no_update_is_lost_and_a_follower_misses_nothing(store: Store, store_url: str) -> None:
    add_run(store)
    store.tasks.change(store.tasks.get("r1", "a"), State.IN_PROGRESS)
    writers = [start(COUNT, store_url, number, ROUNDS) for number in range(WRITERS)]
    readers = [start(READ, store_url, WRITERS * ROUNDS) for _ in range(2)]
    errors = {child: child.communicate(timeout=400)[1] for child in writers + readers}
    assert [text for child, text in errors.items() if child.returncode != 0] == []
    assert store.tasks.get("r1", "a").output == {"n": WRITERS * ROUNDS}
    assert store.tasks.get("r1", "a").version == WRITERS * ROUNDS + 1


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_server_that_cut_idle_connections_is_asked_again(store: Store, store_url: str) -> None:
    add_run(store)
    with psycopg.connect(store_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    store.events.append("r1", None, "after")
    assert [event.kind for event in store.events.tail(run_id="r1")] == ["after"]


def test_a_writer_killed_in_a_transaction_leaves_nothing_and_blocks_nobody(store: Store, store_url: str) -> None:
    add_run(store)
    child = start(HANG, store_url)
    assert child.stdout is not None
    assert child.stdout.readline() == "holding\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    store.events.append("r1", None, "after")
    with open_store(store_url) as other:
        assert [event.kind for event in other.events.tail(run_id="r1")] == ["after"]
