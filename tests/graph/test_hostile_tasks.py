"""Tasks that say, return and do what they should not: the run ends with a sentence, the store stays readable."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.graph.export import export_run
from orchestrator.graph.model import Cancelled, Evidence, Outcome, Probe, State, TaskContext
from orchestrator.store.records import RunState
from orchestrator.store.store import Store, open_store
from tests.graph.conftest import FAST, Do, graph, runner, states, task

NO_UTF8 = "caf\udce9 \x00\nsecond line \U0001f600"
SECRET = "correct-horse-battery"


def fail(ctx: TaskContext) -> Any:
    raise RuntimeError(NO_UTF8)


def hide(text: str) -> str:
    return text.replace(SECRET, "[secret]")


def test_text_that_is_no_utf8_is_kept_and_shown(store: Store, tmp_path: Path) -> None:
    def work(ctx: TaskContext) -> dict[str, Any]:
        ctx.log(NO_UTF8)
        ctx.artifact(f"{NO_UTF8}.txt", NO_UTF8)
        return {NO_UTF8: NO_UTF8}

    proof = Evidence(NO_UTF8, NO_UTF8, {"said": NO_UTF8}, outcome=Outcome(9, NO_UTF8))
    odd = Do(work, lambda ctx: Probe(False, NO_UTF8, {"seen": NO_UTF8}), lambda ctx: proof)
    spec = graph(task("odd", odd), task("left-out", Do(), condition=lambda ctx: NO_UTF8))
    result = runner(store, spec, settings={"x": NO_UTF8}).run()
    assert result.exit_code == 9
    assert store.tasks.get(result.run_id, "left-out").reason == "caf\\udce9 \\x00\nsecond line \U0001f600"
    (log,) = store.events.tail(kinds=("log",))
    assert log.data["line"].startswith("caf\\udce9 \x00")
    export_run(store, result.run_id, tmp_path / "export")
    assert "caf\\udce9" in (tmp_path / "export" / "logs" / "odd.log").read_text(encoding="utf-8")
    json.dumps([event.data for event in store.events.tail()], ensure_ascii=False).encode()


def test_an_error_that_is_no_utf8_ends_the_run_with_one_line(store: Store) -> None:
    spec = graph(task("a", Do(undo=fail), changes_host=True), task("b", Do(fail), "a"), rollback_check=Do())
    result = runner(store, spec).run()
    assert (result.state, result.exit_code) == (RunState.ROLLBACK_UNVERIFIED, 5)
    said = "caf\\udce9 \\x00; second line \U0001f600"
    assert result.reason == f"task b failed with RuntimeError: {said}; undoing task a failed: {said}"


def test_a_secret_is_in_no_table_and_no_file(tmp_path: Path) -> None:
    def work(ctx: TaskContext) -> dict[str, Any]:
        ctx.log(SECRET)
        ctx.progress(SECRET)
        ctx.metric(SECRET, 1.0, arm=SECRET)
        ctx.fact("kind", SECRET, {SECRET: [SECRET]})
        ctx.artifact(f"{SECRET}.bin", b"\xff\xfe" + SECRET.encode())
        return {SECRET: {"deep": (SECRET,)}}

    proof = Evidence(SECRET, SECRET, {"d": SECRET}, outcome=Outcome(9, SECRET, ("b",)))
    leaky = Do(
        work, lambda ctx: Probe(False, SECRET, {"f": SECRET}), lambda ctx: proof, inputs=lambda ctx: {"i": SECRET}
    )
    spec = graph(task("a", leaky), task("b", Do(), "a"), task("c", Do(), condition=lambda ctx: SECRET))
    folder = tmp_path / "place"
    folder.mkdir()
    with open_store(f"sqlite:///{folder}/state.db") as store:
        result = runner(store, spec, mask=hide, settings={SECRET: SECRET}).run()
        export_run(store, result.run_id, folder / "export")
    assert result.exit_code == 9
    dump = "\n".join(sqlite3.connect(folder / "state.db").iterdump())
    assert "[secret]" in dump
    assert SECRET not in dump
    assert [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []


def test_a_reason_for_which_a_change_is_made_again_is_masked(store: Store) -> None:
    looks = iter([Probe(False, "not there"), Probe(False, f"gone: {SECRET}"), Probe(False, "not there")])
    stop = iter([True, False])

    def second(ctx: TaskContext) -> dict[str, Any]:
        if next(stop):
            ctx._session.stop.request("interrupted", "by the test")  # type: ignore[attr-defined]
            ctx.check_cancelled()
        return {}

    spec = graph(task("a", Do(probe=lambda ctx: next(looks)), changes_host=True), task("b", Do(second), "a"))
    first = runner(store, spec, mask=hide).run()
    assert first.state is RunState.INTERRUPTED
    assert runner(store, spec, mask=hide).run(first.run_id, resume=True).exit_code == 0
    reopened = [event.data["reason"] for event in store.events.tail(kinds=("task.reopened",))]
    assert reopened == ["the host drifted: gone: [secret]"]
    assert all(SECRET not in str(proof) for proof in store.evidence.of_run(first.run_id))


@pytest.mark.parametrize("what", ["asked to stop", "hangs"])
def test_looking_again_at_a_change_ends_when_the_run_has_to(
    store: Store, what: str, hangs: Callable[[TaskContext], Any]
) -> None:
    looks = iter([True, False])

    def probe(ctx: TaskContext) -> Probe:
        if next(looks):
            return Probe(False, "not there")
        if what == "hangs":
            return hangs(ctx)
        ctx._session.stop.request("cancelled", "by the test")  # type: ignore[attr-defined]
        ctx.check_cancelled()
        raise AssertionError

    def stop(ctx: TaskContext) -> Any:
        ctx._session.stop.request("interrupted", "by the test")  # type: ignore[attr-defined]
        ctx.check_cancelled()

    change = task("a", Do(probe=probe), changes_host=True, timeout_s=0.2)
    spec = graph(change, task("b", Do(stop), "a"), rollback_check=Do())
    first = runner(store, spec).run()
    second = runner(store, spec, limits=FAST).run(first.run_id, resume=True)
    assert (second.state, second.exit_code) == {
        "asked to stop": (RunState.CANCELLED, 130), "hangs": (RunState.ROLLED_BACK, 4)
    }[what]  # fmt: skip
    assert second.reason.startswith(
        {"asked to stop": "by the test", "hangs": "task a took longer than 0.2 s and did not"}[what]
    )


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (Do(lambda ctx: None), "task a: its apply gave NoneType, it must give a JSON object"),  # type: ignore[arg-type]
        (Do(probe=lambda ctx: None), "task a: its probe gave NoneType, it must give a Probe"),  # type: ignore[arg-type]
        (Do(lambda ctx: {"x": object()}), "task a: a value cannot be kept as JSON (object is not a JSON type)"),
        (Do(lambda ctx: {"x": float("nan")}), "task a: a value cannot be kept as JSON (Out of range"),
        (Do(verify=lambda ctx: Evidence("x", "y", outcome=Outcome(77, "z"))), "task a: its outcome has 77; name exit"),
        (
            Do(verify=lambda ctx: Evidence("x", "y", outcome=Outcome(9, "z", ("b",)))),
            "skips b, which the graph has not",
        ),
    ],
)
def test_what_a_task_gives_is_checked_and_the_task_named(store: Store, action: Do, sentence: str) -> None:
    result = runner(store, graph(task("a", action))).run()
    assert (result.state, result.exit_code) == (RunState.FAILED, 1)
    assert sentence in result.reason


def test_a_task_that_says_cancelled_by_itself_has_failed(store: Store) -> None:
    def leave(ctx: TaskContext) -> Any:
        raise Cancelled("I am off")

    result = runner(store, graph(task("a", Do(leave)), task("b", Do(), "a"))).run()
    assert (result.state, result.exit_code) == (RunState.FAILED, 1)
    assert result.reason == "task a failed with Cancelled: I am off"
    assert states(store, result.run_id) == {"a": "failed", "b": "pending"}


def test_a_line_without_end_is_cut(store: Store) -> None:
    result = runner(store, graph(task("a", Do(lambda ctx: ctx.log("x" * 1_000_000) or {})))).run()
    assert result.exit_code == 0
    (line,) = [event.data["line"] for event in store.events.tail(kinds=("log",))]
    assert line.endswith("… (980000 more characters left out)")
    assert len(line) < 21_000


def obeys(ctx: TaskContext) -> None:
    while True:
        ctx.check_cancelled()
        time.sleep(0.01)


@pytest.fixture
def hangs() -> Iterator[Callable[[TaskContext], Any]]:
    end = threading.Event()
    yield lambda ctx: end.wait(60)
    end.set()


@pytest.mark.parametrize("where", ["undo", "check"])
@pytest.mark.parametrize("how", ["obeys", "hangs"])
def test_a_way_back_without_end_is_given_up(
    store: Store, where: str, how: str, hangs: Callable[[TaskContext], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: Any = obeys if how == "obeys" else hangs
    monkeypatch.setattr("orchestrator.graph.rollback.CHECK_S", 0.2)
    undone = Do(undo=slow) if where == "undo" else Do()
    check = Do(verify=slow) if where == "check" else Do()
    spec = graph(task("a", undone, changes_host=True, timeout_s=0.2), task("b", Do(fail), "a"), rollback_check=check)
    result = runner(store, spec, limits=FAST).run()
    assert (result.state, result.exit_code) == (RunState.ROLLBACK_UNVERIFIED, 5)
    assert "took longer than 0.2 s" in result.reason
    monkeypatch.undo()
    mended = graph(task("a", Do(), changes_host=True), task("b", Do(), "a"), rollback_check=Do())
    assert runner(store, mended).run(result.run_id, resume=True).exit_code == 4


def test_a_process_that_wakes_up_after_its_lock_was_taken_changes_nothing_more(store: Store) -> None:
    """As after SIGSTOP and SIGCONT: no heartbeat had the time to notice."""
    second = Do()

    def robbed(ctx: TaskContext) -> dict[str, Any]:
        store.leases.steal("local", "bob", "it was stopped")
        store.leases.acquire("local", "bob", "r9")
        return {}

    spec = graph(task("a", Do(robbed), changes_host=True), task("b", second, "a", changes_host=True))
    result = runner(store, spec, lease_ttl_s=3600).run()
    assert (result.exit_code, result.reason) == (6, "the lock of local was taken by someone else")
    assert "apply" not in second.calls
    assert store.tasks.get(result.run_id, "b").state is State.PENDING
    lease = store.leases.get("local")
    assert lease is not None
    assert lease.owner == "bob"
