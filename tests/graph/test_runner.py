"""The runner, forward: order, proof, skipping, outcomes, retries, time-outs, re-use and lost connections."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import BenchInvalidError, ExitCode, LockedError, UsageError
from orchestrator.graph.model import Evidence, Outcome, Probe, Retry, State, TaskContext
from orchestrator.store.records import Event, RunState
from orchestrator.store.store import Store
from orchestrator.transport.base import ConnectionLost, HostUnreachable
from tests.graph.conftest import Do, graph, kinds, runner, states, task
from tests.graph.fake_host import FakeHost


def failing(error: BaseException) -> Do:
    def apply(ctx: TaskContext) -> Mapping[str, Any]:
        raise error

    return Do(apply)


def test_tasks_run_in_order_read_earlier_outputs_and_leave_proof(store: Store) -> None:
    seen: list[Any] = []
    spec = graph(
        task("second", Do(lambda ctx: seen.append(ctx.output("first")) or {}), "first"),
        task("first", Do(lambda ctx: {"n": 1}, verify=lambda ctx: Evidence("n", "is 1", {"n": 1}))),
    )
    events: list[Event] = []
    result = runner(store, spec).run(on_event=events.append)
    assert (result.state, result.exit_code) == (RunState.COMPLETED, 0)
    assert seen == [{"n": 1}]
    proof = store.evidence.get(store.tasks.get(result.run_id, "first").evidence_id or 0)
    assert (proof.checked, proof.output, proof.data) == ("n", "is 1", {"n": 1})
    assert kinds(store, result.run_id, "first") == [
        "task.claimed", "task.probed", "task.applying", "task.applied", "task.completed",
    ]  # fmt: skip
    assert [event.seq for event in events] == sorted(event.seq for event in events)


def test_what_is_already_so_is_proved_and_not_done_again(store: Store) -> None:
    action = Do(probe=lambda ctx: Probe(True, "installed", {"version": 3}))
    result = runner(store, graph(task("a", action))).run()
    assert action.calls == ["inputs", "probe", "verify"]
    assert result.tasks[0].reason == "already so: installed"
    assert result.tasks[0].output == {"version": 3}
    assert not result.tasks[0].began


def test_without_evidence_nothing_is_completed(store: Store) -> None:
    result = runner(store, graph(task("a", Do(verify=lambda ctx: None)))).run()  # type: ignore[arg-type,return-value]
    assert (result.state, result.exit_code) == (RunState.FAILED, 1)
    assert "gave no evidence" in result.reason
    assert states(store, result.run_id) == {"a": "failed"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("boom"), ExitCode.FAILED_UNCHANGED),
        (HostUnreachable("no route"), ExitCode.UNREACHABLE),
        (BenchInvalidError("no row"), ExitCode.BENCH_INVALID),
    ],
)
def test_a_failure_before_any_change_ends_with_the_code_of_its_error(
    store: Store, error: Exception, code: ExitCode
) -> None:
    after = Do()
    result = runner(store, graph(task("a", failing(error)), task("b", after, "a"))).run()
    assert (result.state, result.exit_code) == (RunState.FAILED, code)
    assert states(store, result.run_id) == {"a": "failed", "b": "pending"}
    assert after.calls == []


def test_an_outcome_skips_tasks_and_gives_the_exit_code(store: Store) -> None:
    outcome = Outcome(9, "measured 0.8x: keep linear", ("cut-over",))
    cut_over, roadmap = Do(), Do()
    spec = graph(
        task("decide", Do(verify=lambda ctx: Evidence("ratio", "0.8", outcome=outcome))),
        task("cut-over", cut_over, "decide"),
        task("roadmap", roadmap, "cut-over"),
    )
    result = runner(store, spec).run()
    assert (result.state, result.exit_code, result.reason) == (RunState.COMPLETED, 9, outcome.reason)
    assert states(store, result.run_id)["cut-over"] == "skipped"
    assert cut_over.calls == []
    assert "apply" in roadmap.calls
    assert store.runs.get(result.run_id).outcome == outcome


def test_condition_only_and_skip(store: Store) -> None:
    spec = graph(
        task("a", Do()),
        task("b", Do(), "a", condition=lambda ctx: "not on this host"),
        task("c", Do(), "b"),
        task("d", Do()),
    )
    result = runner(store, spec).run(only=["c"], skip=["a"])
    reasons = {item.key: item.reason for item in result.tasks if item.state is State.SKIPPED}
    assert reasons == {"a": "skipped by --skip", "b": "not on this host", "d": "not selected by --only"}
    again = runner(store, spec).run(result.run_id, resume=True)
    assert states(store, again.run_id) == {"a": "skipped", "b": "skipped", "c": "completed", "d": "completed"}
    with pytest.raises(UsageError, match="--only cc: graph g has no such task; did you mean c"):
        runner(store, spec).run(only=["cc"])


def test_a_retry_waits_and_counts(store: Store) -> None:
    tries: list[int] = []

    def apply(ctx: TaskContext) -> Mapping[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return {}

    result = runner(store, graph(task("a", Do(apply), retry=Retry(3, 0.01, 0.02)))).run()
    assert result.state is RunState.COMPLETED
    assert result.tasks[0].attempts == 3
    assert kinds(store, result.run_id).count("task.retry") == 2


def test_a_usage_error_is_not_retried(store: Store) -> None:
    action = failing(UsageError("wrong file"))
    result = runner(store, graph(task("a", action, retry=Retry(5, 0.01)))).run()
    assert (result.exit_code, action.calls.count("apply")) == (2, 1)


def test_a_lost_connection_leads_to_a_probe_never_to_a_blind_repeat(store: Store, host: FakeHost) -> None:
    def apply(ctx: TaskContext) -> Mapping[str, Any]:
        ctx.host.do("make service")
        raise ConnectionLost("the network went away")

    action = Do(apply, lambda ctx: Probe(ctx.host.has("service"), "looked", {"pid": 7}))
    result = runner(store, graph(task("a", action, changes_host=True)), host).run()
    assert result.state is RunState.COMPLETED
    assert host.lines() == ["make service"]
    assert action.calls == ["inputs", "probe", "apply", "inputs", "probe", "verify"]
    assert "task.unknown" in kinds(store, result.run_id)
    assert result.tasks[0].output == {"pid": 7}


def test_a_host_that_stays_away_after_a_change_needs_a_person(store: Store) -> None:
    gone = ConnectionLost("gone")

    def lost(ctx: TaskContext) -> Any:
        raise gone

    probes = iter([Probe(False, "absent")])

    def probe(ctx: TaskContext) -> Probe:
        return next(probes, None) or lost(ctx)

    action = Do(lost, probe, undo=lost)
    result = runner(store, graph(task("a", action, changes_host=True))).run()
    assert (result.state, result.exit_code) == (RunState.ROLLBACK_UNVERIFIED, ExitCode.ROLLBACK_UNVERIFIED)
    assert action.calls.count("apply") == 1


def test_a_task_that_obeys_its_time_out_fails_with_it(store: Store) -> None:
    def apply(ctx: TaskContext) -> Mapping[str, Any]:
        while True:
            ctx.check_cancelled()
            threading.Event().wait(0.01)

    result = runner(store, graph(task("a", Do(apply), timeout_s=0.1))).run()
    assert result.exit_code == 1
    assert "took longer than 0.1 s" in result.reason


def test_a_task_that_hangs_is_given_up_and_its_late_result_refused(store: Store) -> None:
    release, late = threading.Event(), []

    def apply(ctx: TaskContext) -> Mapping[str, Any]:
        release.wait(60)
        try:
            ctx.log("late")
        except BaseException as error:
            late.append(error)
        return {}

    result = runner(store, graph(task("a", Do(apply), timeout_s=0.05))).run()
    assert result.exit_code == 1
    assert "did not stop when told to" in result.reason
    release.set()
    for thread in threading.enumerate():
        if thread.name == "task a":
            thread.join(20)
    assert states(store, result.run_id) == {"a": "unknown"}
    assert [type(error).__name__ for error in late] == ["Cancelled"]
    assert "log" not in kinds(store, result.run_id)


def test_independent_tasks_overlap_and_changing_ones_do_not(store: Store) -> None:
    both = threading.Barrier(2, timeout=20)
    alone, most = threading.Semaphore(1), []

    def change(ctx: TaskContext) -> Mapping[str, Any]:
        most.append(alone.acquire(blocking=False))
        threading.Event().wait(0.05)
        alone.release()
        return {}

    def meet(ctx: TaskContext) -> Mapping[str, Any]:
        both.wait()
        return {}

    spec = graph(
        task("look1", Do(meet)),
        task("look2", Do(meet)),
        *(task(f"change{number}", Do(change), changes_host=True) for number in range(3)),
    )
    assert runner(store, spec).run().state is RunState.COMPLETED
    assert most == [True] * 3


def test_results_are_reused_only_while_inputs_host_and_evidence_allow(store: Store, host: FakeHost) -> None:
    version = {"v": 1}
    action = Do(
        lambda ctx: ctx.host.do("make x") or {"x": version["v"]},
        lambda ctx: Probe(ctx.host.has("x"), "x is there" if ctx.host.has("x") else "x is gone"),
        inputs=lambda ctx: dict(version),
    )
    after = Do(probe=lambda ctx: Probe(ctx.earlier is not None, "measured before"))
    spec = graph(task("a", action), task("b", after, "a"))

    def reason() -> list[str]:
        result = runner(store, spec, host).run()
        return [event.data.get("why") or event.data.get("reason") for event in store.events.tail(run_id=result.run_id)
                if event.kind in ("task.reused", "task.applying")]  # fmt: skip

    assert reason() == ["it has not run before with this graph and host"] * 2
    first = store.runs.list()[0].id
    assert reason() == [f"reused from run {first}: same inputs, x is there",
                        f"reused from run {first}: same inputs, measured before"]  # fmt: skip
    host.do("drop x")
    assert reason()[0] == "the host is no longer as the earlier run left it"
    host.do("drop x")
    version["v"] = 2
    assert reason() == ["input changed: v: 1 -> 2", "input changed: result of a: x: 1 -> 2"]
    result = runner(store, spec, host).run(force=["b"])
    assert kinds(store, result.run_id, "a")[-1] == "task.reused"
    assert kinds(store, result.run_id, "b")[-1] == "task.completed"


def test_expired_evidence_is_not_reused_and_reopens_a_resumed_task(store: Store) -> None:
    def verify(ctx: TaskContext) -> Evidence:
        return Evidence("looked", "fine", expires_after_s=0.0)

    action = Do(probe=lambda ctx: Probe(ctx.earlier is not None, "as before"), verify=verify)
    spec = graph(task("a", action), task("b", failing(ValueError("boom")), "a"))
    first = runner(store, spec).run()
    runner(store, spec).run()
    assert action.calls.count("apply") == 2
    runner(store, spec).run(first.run_id, resume=True)
    assert action.calls.count("apply") == 3
    (reopened,) = (event for event in store.events.tail(run_id=first.run_id, task_key="a", kinds=("task.reopened",)))
    assert reopened.data["reason"] == "its evidence expired"


def test_secrets_reach_neither_store_nor_listener(store: Store, tmp_path: Any) -> None:
    def apply(ctx: TaskContext) -> Mapping[str, Any]:
        ctx.log("token is hunter2")
        ctx.artifact("log.txt", "hunter2")
        ctx.artifact("log.bin", b"hunter2\n")
        ctx.progress("using hunter2")
        raise RuntimeError("login with hunter2 failed")

    heard: list[Event] = []
    spec = graph(task("a", Do(apply, inputs=lambda ctx: {"key": "hunter2"})))
    options = {"mask": lambda text: text.replace("hunter2", "***"), "settings": {"key": "hunter2"}}
    result = runner(store, spec, **options).run(on_event=heard.append)
    assert "***" in result.reason
    store.close()
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"***" in everything
    assert b"hunter2" not in everything
    assert "hunter2" not in str(heard)


def test_a_second_run_on_a_locked_host_is_refused_and_looking_is_not(store: Store) -> None:
    store.leases.acquire("local", "ada@bench", "r9")
    before = store.events.last_seq()
    with pytest.raises(LockedError, match="ada@bench"):
        runner(store, graph(task("a", Do(), changes_host=True))).run()
    assert (store.runs.list(), store.events.last_seq()) == ([], before), "status and resume shall not find it"
    assert runner(store, graph(task("a", Do()))).run().exit_code == 0


@pytest.mark.parametrize("error", [OSError("the terminal is gone"), SystemExit(1)], ids=["error", "closed pipe"])
def test_a_broken_listener_does_not_stop_the_run(store: Store, error: BaseException) -> None:
    def listener(event: Event) -> None:
        raise error

    with pytest.warns(UserWarning, match="listener failed"):
        assert runner(store, graph(task("a", Do()))).run(on_event=listener).exit_code == 0
