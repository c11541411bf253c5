"""The read model, without a screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.graph.model import State
from orchestrator.store.process import ProcessName
from orchestrator.store.records import RunState
from orchestrator.store.store import Store
from orchestrator.tui.benchreading import bench_reading
from orchestrator.tui.blocks import plain_lines, text_of
from orchestrator.tui.eta import Durations, earlier_durations, seconds_left
from orchestrator.tui.model import BATCH, Reading, advance, first_reading, pick_run
from orchestrator.tui.pages.bench import bench_page
from orchestrator.tui.pages.header import header
from tests.tui.fixtures import DEPLOY, EARLIER_ID, HOST, RUN_ID, START, Clock, Script, Stage, new_store, spec


def test_reads_a_run_with_its_tasks_facts_and_progress(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    assert reading.run is not None
    assert (reading.run.id, reading.run.host) == (RUN_ID, HOST)
    assert reading.counts == {State.COMPLETED: 11, State.IN_PROGRESS: 1, State.PENDING: 4}
    assert str(reading.progress["bench-budgets"]) == "pairs 7/12"
    assert [fact.data["id"] for fact in reading.facts_of("release", HOST)] == ["found-3fa9c1", "ddtree-20260102-64"]
    assert len(reading.measured_of("bench.row")) == 42
    assert list(reading.phases)[:3] == ["preflight", "inspect", "baseline"]


def test_nothing_new_is_no_delta(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    after, delta = advance(demo.store, reading)
    assert not delta
    assert after.tasks is reading.tasks
    assert after.facts is reading.facts


def test_only_what_moved_is_read_again(demo: Stage) -> None:
    before = first_reading(demo.store, RUN_ID)
    demo.script.log("bench-budgets", "one more line")
    demo.script.finish("bench-budgets")
    after, delta = advance(demo.store, before)
    assert [event.kind for event in delta.events] == ["log", "task.completed"]
    assert delta.tasks == {"bench-budgets"}
    assert after.tasks["bench-budgets"].state is State.COMPLETED
    assert after.tasks["reach-host"] is before.tasks["reach-host"]
    assert "bench-budgets" not in after.progress


def test_incremental_reading_ends_where_a_whole_one_does(demo: Stage) -> None:
    """Whatever happens step by step, the reading is the same as one taken anew."""
    reading = first_reading(demo.store, RUN_ID)
    script = demo.script
    script.finish("bench-budgets")
    reading, _ = advance(demo.store, reading)
    for key in ("arm-deadman", "switch-service"):
        script.start(key)
        reading, _ = advance(demo.store, reading)
        script.event(key, "progress", text="step", done=1, total=3)
        script.fact(key, "deadman", HOST, {"armed": key == "arm-deadman"})
        script.finish(key)
        reading, _ = advance(demo.store, reading)
    script.start("disarm-deadman")
    script.fail("disarm-deadman", "the host did not answer")
    script.end(RunState.FAILED, 1, "the host did not answer")
    reading, _ = advance(demo.store, reading)
    anew = first_reading(demo.store, RUN_ID)
    assert reading.run == anew.run
    assert dict(reading.tasks) == dict(anew.tasks)
    assert list(reading.tasks) == list(anew.tasks)
    assert dict(reading.facts) == dict(anew.facts)
    assert reading.measured == anew.measured
    assert dict(reading.progress) == dict(anew.progress)
    assert (reading.seq, reading.store_seq, reading.fact_id) == (anew.seq, anew.store_seq, anew.fact_id)


def test_more_events_than_a_batch_arrive_in_several_steps(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    with demo.store.transaction():
        for number in range(BATCH + 10):
            demo.store.events.append(RUN_ID, "bench-budgets", "log", {"line": str(number)})
    reading, first = advance(demo.store, reading)
    reading, second = advance(demo.store, reading)
    reading, third = advance(demo.store, reading)
    assert (len(first.events), len(second.events)) == (BATCH, 10)
    assert not third.events
    assert [event.data["line"] for event in (*first.events, *second.events)] == [str(n) for n in range(BATCH + 10)]


def test_events_of_other_runs_move_the_store_not_the_run(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    demo.store.events.append(EARLIER_ID, None, "log", {"line": "elsewhere"})
    after, delta = advance(demo.store, reading)
    assert delta.store_moved
    assert not delta.events
    assert after.tasks is reading.tasks


def test_a_sign_of_life_of_the_lock_is_news_though_nothing_else_happens(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    assert reading.lease is not None
    demo.clock.now += reading.lease.ttl_s + 1
    silent = header(reading, Durations(), None, "", demo.clock.now)
    assert any("silent since" in text_of(part) for part in silent)
    assert demo.store.leases.heartbeat(reading.lease)
    after, delta = advance(demo.store, reading)
    assert delta
    assert not delta.run_changed
    assert not any("silent" in text_of(part) for part in header(after, Durations(), None, "", demo.clock.now))


def test_a_measurement_that_was_taken_over_is_shown_with_the_run_that_made_it(demo: Stage) -> None:
    """The figures lie further back in the store than anything that is new when the task is reused."""
    store, script = demo.store, demo.script
    script.finish("bench-budgets")
    proof = store.evidence.get(script.tasks["bench-budgets"].evidence_id or 0)
    again = Script.begin(store, demo.clock, "r20260103-000000-77aa", DEPLOY)
    reading = first_reading(store, again.run_id)
    again.start("bench-budgets")
    reading, _ = advance(store, reading)
    assert not bench_reading(reading).rows
    with store.transaction():
        kept = store.evidence.reuse(again.run_id, "bench-budgets", proof)
        again.change("bench-budgets", State.COMPLETED, evidence_id=kept.id)
        again.event("bench-budgets", "task.reused", evidence=kept.id, reason=f"reused from run {RUN_ID}")
    reading, delta = advance(store, reading)
    assert "bench.row" in delta.facts
    found = bench_reading(reading)
    assert (found.measured_in, found.decision) == (RUN_ID, "inconclusive")
    assert found.arms == bench_reading(first_reading(store, RUN_ID)).arms
    assert reading.measured == first_reading(store, again.run_id).measured
    assert RUN_ID in " ".join(plain_lines(bench_page(found)))
    again.change("bench-budgets", State.PENDING, evidence_id=None)
    again.event("bench-budgets", "task.reopened", reason="the host drifted")
    reading, delta = advance(store, reading)
    assert "bench.row" in delta.facts
    assert not reading.measured


def test_what_a_task_waits_for(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    assert [task.key for task in reading.waits_for("arm-deadman")] == ["bench-budgets"]
    assert reading.waits_for("reach-host") == ()


def test_a_dead_process_is_noticed(demo: Stage) -> None:
    run = demo.store.runs.get(RUN_ID)
    name = ProcessName.from_text(run.process)
    assert name is not None
    gone = ProcessName(name.machine, name.boot, name.namespace, name.pid, "1").to_text()
    assert not first_reading(demo.store, RUN_ID).process_gone
    with demo.store.transaction() as tx:
        tx.execute("UPDATE runs SET process = ? WHERE id = ?", (gone, RUN_ID))
    reading, delta = advance(demo.store, first_reading(demo.store, RUN_ID))
    assert reading.process_gone
    demo.script.end(RunState.INTERRUPTED, 130, "interrupted")
    reading, delta = advance(demo.store, reading)
    assert not reading.process_gone
    assert delta.run_changed


def test_a_run_of_another_machine_is_gone_when_its_lease_is_silent(demo: Stage) -> None:
    name = ProcessName("another-machine", "boot", "ns", 7, "1").to_text()
    with demo.store.transaction() as tx:
        tx.execute("UPDATE runs SET process = ? WHERE id = ?", (name, RUN_ID))
        tx.execute("UPDATE leases SET process = ?", (name,))
    assert not first_reading(demo.store, RUN_ID).process_gone
    demo.clock.now += 120
    assert first_reading(demo.store, RUN_ID).process_gone


def test_picks_the_active_run_then_the_newest(demo: Stage) -> None:
    assert pick_run(demo.store, None) == RUN_ID
    assert pick_run(demo.store, EARLIER_ID[:14]) == EARLIER_ID
    demo.script.end(RunState.COMPLETED, 0)
    assert pick_run(demo.store, None) == RUN_ID
    with pytest.raises(UsageError):
        pick_run(demo.store, "r1999")


def test_an_empty_store_has_a_reading(tmp_path: Path) -> None:
    with new_store(tmp_path, Clock()) as store:
        reading = first_reading(store, pick_run(store, None))
        assert reading == Reading()
        Script.begin(store, Clock())
        _, delta = advance(store, reading)
        assert delta.store_moved


def test_time_left_comes_from_earlier_runs(demo: Stage) -> None:
    reading = first_reading(demo.store, RUN_ID)
    assert reading.run is not None
    durations = earlier_durations(demo.store, reading.run)
    assert durations.runs == 1
    assert durations.seconds["bench-budgets"] == 640.0
    started = reading.tasks["bench-budgets"].started_at
    assert started is not None
    left = seconds_left(reading, durations, started + 40)
    assert left == pytest.approx(600 + 1.0)  # the rest of the benchmark, then the roadmap; cut-over was skipped then


def test_time_left_is_unknown_without_history(tmp_path: Path) -> None:
    with new_store(tmp_path, Clock()) as store:
        Script.begin(store, Clock(), specs=(spec("only", "The only task", "work"),))
        reading = first_reading(store, RUN_ID)
        assert reading.run is not None
        assert seconds_left(reading, earlier_durations(store, reading.run), 0.0) is None


def test_the_header_names_what_serves_before_a_release_is_recorded(tmp_path: Path) -> None:
    clock = Clock()
    with new_store(tmp_path, clock) as store:
        script = Script.begin(store, clock)
        assert "release not known" in said(store)
        script.fact("inspect-sglang", "service", HOST, {"algorithm": "DFLASH"})
        assert "release not recorded yet, DFLASH serves" in said(store)


def said(store: Store) -> list[str]:
    return [text_of(part) for part in header(first_reading(store, RUN_ID), Durations(), None, "none yet", START)]
