"""Runs, tasks, evidence and events: what is written together is there together, and nobody's change is lost."""

from __future__ import annotations

import os
import sqlite3
import threading
from dataclasses import replace

import psycopg
import pytest

from orchestrator.errors import LockedError, UsageError
from orchestrator.graph.model import Evidence, Outcome, State
from orchestrator.graph.states import IllegalTransition
from orchestrator.store.process import current_process
from orchestrator.store.records import RunState
from orchestrator.store.store import Store, open_store
from orchestrator.store.tasks import StaleTask
from tests.store.conftest import add_run


def begin_and_fail(store: Store) -> None:
    with store.transaction():
        store.events.append("r1", None, "x")
        store.tasks.change(store.tasks.get("r1", "a"), State.IN_PROGRESS)
        raise ZeroDivisionError


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    add_run(store)
    with pytest.raises(ZeroDivisionError):
        begin_and_fail(store)
    assert store.events.count() == 0
    assert store.tasks.get("r1", "a").state is State.PENDING


def test_a_change_decided_on_an_old_state_is_refused(store: Store) -> None:
    add_run(store)
    seen = store.tasks.get("r1", "a")
    store.tasks.change(seen, State.IN_PROGRESS, claimed_by="first")
    with pytest.raises(StaleTask):
        store.tasks.change(seen, State.IN_PROGRESS, claimed_by="second")
    assert store.tasks.get("r1", "a").claimed_by == "first"


def test_completed_needs_evidence_even_past_the_code(store: Store) -> None:
    add_run(store)
    running = store.tasks.change(store.tasks.get("r1", "a"), State.IN_PROGRESS)
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        store.tasks.change(running, State.COMPLETED)
    proof = store.evidence.add("r1", "a", Evidence("looked", "fine", {"n": 1}, 60.0, Outcome(9, "slower", ("b",))))
    done = store.tasks.change(running, State.COMPLETED, evidence_id=proof.id)
    read = store.evidence.get(done.evidence_id or 0)
    assert (read.checked, read.output, read.data, read.proved_by_run) == ("looked", "fine", {"n": 1}, "r1")
    assert read.outcome == Outcome(9, "slower", ("b",))
    assert read.expires_at == pytest.approx(read.at + 60)
    assert len(read.sha256) == 64


def test_no_state_is_reached_out_of_order(store: Store) -> None:
    add_run(store)
    with pytest.raises(IllegalTransition, match="a cannot go from pending to completed"):
        store.tasks.change(store.tasks.get("r1", "a"), State.COMPLETED)


def test_events_keep_their_order_and_filters(store: Store) -> None:
    add_run(store)
    for number in range(25):
        store.events.append("r1", "a" if number % 2 else None, f"kind{number % 3}", {"n": number})
    events = store.events.tail(run_id="r1")
    assert [event.data["n"] for event in events] == list(range(25))
    assert [event.data["n"] for event in store.events.tail(events[9].seq, limit=3)] == [10, 11, 12]
    assert {event.data["n"] % 2 for event in store.events.tail(task_key="a")} == {1}
    assert [event.data["n"] for event in store.events.latest(2, kinds=("kind0",))] == [21, 24]
    assert store.events.last_seq("r1") == events[-1].seq
    assert store.events.tail(events[-1].seq) == []


def test_a_reader_sees_one_moment_and_blocks_nobody(store: Store) -> None:
    store.events.append(None, None, "before")
    with store.snapshot():
        seen = store.events.count()
        writer = threading.Thread(target=store.events.append, args=(None, None, "meanwhile"))
        writer.start()
        writer.join(timeout=20)
        assert not writer.is_alive(), "the reader blocked the writer"
        assert store.events.count() == seen
    assert store.events.count() == seen + 1


def test_a_run_that_someone_works_on_cannot_be_taken(store: Store, store_url: str) -> None:
    add_run(store)
    store.runs.take("r1", RunState.RUNNING)
    store.runs.take("r1", RunState.RUNNING)  # the same process may go on
    with store.transaction() as tx:
        tx.execute("UPDATE runs SET process = ? WHERE id = 'r1'", (_process_of_init(),))
    with pytest.raises(LockedError, match="process 1"):
        store.runs.take("r1", RunState.RUNNING)
    with store.transaction() as tx:
        dead = _process_of_init().replace('"started": "', '"started": "9')
        tx.execute("UPDATE runs SET process = ? WHERE id = 'r1'", (dead,))
    assert store.runs.take("r1", RunState.RUNNING).state is RunState.RUNNING


def test_an_id_names_one_run_also_when_two_processes_choose_it(store: Store) -> None:
    store.runs.create("r-same", "g", "one", "definition", {})
    with pytest.raises(UsageError, match="there is a run r-same already"):
        store.runs.create("r-same", "g", "two", "definition", {})
    assert store.runs.get("r-same").host == "one"


def test_runs_are_found_by_a_unique_beginning(store: Store) -> None:
    add_run(store, "r20260101-aaaa")
    add_run(store, "r20260102-bbbb")
    assert store.runs.get("r20260102").id == "r20260102-bbbb"
    with pytest.raises(UsageError, match="no run r2026: "):
        store.runs.get("r2026")
    with pytest.raises(UsageError):
        store.runs.get("")


def test_cancel_is_only_for_a_run_at_work(store: Store) -> None:
    add_run(store)
    with pytest.raises(UsageError, match="nothing to cancel"):
        store.runs.request_cancel("r1", "enough")
    store.runs.take("r1", RunState.RUNNING)
    assert store.runs.request_cancel("r1", "enough").cancel_reason == "enough"


def test_what_goes_back_and_what_nobody_works_on_is_not_cancelled(store: Store) -> None:
    add_run(store)
    store.runs.take("r1", RunState.ROLLING_BACK)
    with pytest.raises(UsageError, match="rolling back, which has to come to its end"):
        store.runs.request_cancel("r1", "enough")
    dead = replace(current_process(), pid=2**22 + 1).to_text()
    with store.transaction() as tx:
        tx.execute("UPDATE runs SET process = ?", (dead,))
    with pytest.raises(UsageError, match=r"the process of run r1 is gone.*--resume r1"):
        store.runs.request_cancel("r1", "enough")


def test_facts_and_notes_and_files(store: Store) -> None:
    add_run(store)
    store.facts.add("release", "r-1", {"known_good": False}, host="local")
    store.facts.add("release", "r-1", {"known_good": True}, host="local")
    newest = store.facts.latest("release", "r-1")
    assert newest is not None
    assert newest.data == {"known_good": True}
    assert store.facts.latest("release", host="other") is None
    note = store.notes.add("risk", "graphs\x1b[31m may not fit\x00", "ada@bench", task_key="a")
    assert "\x1b" not in note.text
    assert store.notes.list("risk", "a") == [note]
    with pytest.raises(UsageError, match="choose decision, risk, assumption"):
        store.notes.add("wish", "x", "ada")
    with pytest.raises(UsageError, match="no run has a task c; "):
        store.notes.add("risk", "x", "ada", "c")
    first = store.artifacts.add("r1", "a", "rows.json", b"{}")
    os.utime(first.path, (0, 0))
    again = store.artifacts.add("r1", "b", "rows.json", b"{}")
    assert again.path.stat().st_mtime > 0, "retention must not take it for one that nobody uses any more"
    assert first.path == again.path
    assert first.path.read_bytes() == b"{}"
    assert [item.task_key for item in store.artifacts.list("r1")] == ["a", "b"]


def test_reopening_keeps_everything(store: Store, store_url: str) -> None:
    add_run(store)
    store.events.append("r1", "a", "log", {"line": "ünïcode \u0000 \ud800"})
    before = (store.runs.list(), store.tasks.list("r1"), store.events.tail())
    with open_store(store_url) as other:
        assert (other.runs.list(), other.tasks.list("r1"), other.events.tail()) == before


def _process_of_init() -> str:
    """The name of process 1, which lives as long as this machine does."""
    from dataclasses import replace

    from orchestrator.store.process import _start_ticks, current_process

    return replace(current_process(), pid=1, started=_start_ticks(1) or "").to_text()


def test_the_newest_run_is_the_last_one_begun_when_the_clock_goes_back(store_url: str) -> None:
    times = iter(range(2_000_000_000, 0, -3600))
    with open_store(store_url, clock=lambda: float(next(times))) as store:
        for run_id in ("r1", "r2", "r3"):
            add_run(store, run_id)
        assert [run.id for run in store.runs.list()] == ["r3", "r2", "r1"]
        assert store.runs.latest("local", "graph") == store.runs.get("r3")
