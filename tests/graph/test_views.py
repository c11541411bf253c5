"""What reads the store: explain, preview, follow, export, retention."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanStaleError, UsageError
from orchestrator.graph.events import follow, history, to_line
from orchestrator.graph.explain import explain
from orchestrator.graph.export import export_run, missing_files
from orchestrator.graph.model import Change, Evidence, GraphSpec, Outcome, Probe, TaskContext
from orchestrator.graph.preview import Preview, check_plan, preview
from orchestrator.store.retention import prune, vacuum
from orchestrator.store.store import Store, open_store
from orchestrator.transport.base import HostUnreachable
from tests.graph.conftest import Do, graph, runner, states, task
from tests.graph.fake_host import Break, Effect, FakeHost, Measure
from tests.graph.stand_in import deploy_graph


def reasons(store: Store, run_id: str, key: str) -> list[tuple[str, str]]:
    return [(reason.kind, reason.text) for reason in explain(store, run_id, key).reasons]


def test_explain_says_why(store: Store, host: FakeHost) -> None:
    version = {"v": 1}
    looked = Do(inputs=lambda ctx: dict(version), probe=lambda ctx: Probe(False, "old", {"disk": version["v"]}))
    spec = graph(task("a", looked), task("b", Break(), "a"), task("c", Do(), "b"))
    first = runner(store, spec, host).run()
    version["v"] = 2
    second = runner(store, spec, host).run()
    explained = explain(store, second.run_id, "a")
    assert explained.verdict == "done"
    assert [str(change) for change in explained.inputs_changed] == ["v: 1 -> 2"]
    assert (explained.facts_before, explained.facts_now) == ({"disk": 1}, {"disk": 2})
    assert ("input changed", "v: 1 -> 2") in reasons(store, second.run_id, "a")
    assert ("looked", "the host, before it: old") in reasons(store, second.run_id, "a")
    assert ("ran", "the work was done: input changed: v: 1 -> 2") in reasons(store, second.run_id, "a")
    assert explain(store, second.run_id, "c").verdict == "waits"
    assert ("blocked", "it waits for b, which is failed") in reasons(store, second.run_id, "c")
    assert explain(store, second.run_id, "b").verdict == "runs"
    assert ("recorded", "task b failed with RuntimeError: the smoke test failed") in reasons(store, second.run_id, "b")
    store.evidence.contradict(store.tasks.get(first.run_id, "a").evidence_id or 0, "the file is gone")
    assert explain(store, first.run_id, "a").verdict == "runs"
    assert ("contradicted", "its evidence was contradicted: the file is gone") in reasons(store, first.run_id, "a")


def test_explain_names_the_outcome_that_skipped_a_task(store: Store, host: FakeHost) -> None:
    result = runner(store, deploy_graph(outcome=Outcome(9, "0.8x", ("cut-over", "smoke"))), host).run()
    assert explain(store, result.run_id, "cut-over").verdict == "skipped"
    assert ("outcome", "the run decided: 0.8x") in reasons(store, result.run_id, "cut-over")


class Copy(Effect):
    def changes(self, ctx: TaskContext) -> list[Change]:
        return [Change("file", f"/opt/{part}", "written", f"+{ctx.settings.get('text', '')}") for part in self.parts]


def look_at(store: Store, spec: GraphSpec, host: Any, **settings: str) -> Preview:
    return preview(store, spec, lambda name: host, host="local", settings=settings)


def test_preview_tells_what_would_happen_and_changes_nothing(store: Store, host: FakeHost) -> None:
    spec = graph(task("a", Copy("x"), changes_host=True), task("b", Do(probe=lambda ctx: ctx.output("a")["none"]), "a"))
    planned = look_at(store, spec, host, text="one")
    assert [(item.key, item.action) for item in planned.tasks] == [("a", "run"), ("b", "later")]
    assert planned.tasks[0].changes == (Change("file", "/opt/x", "written", "+one"),)
    assert (host.lines(), store.events.count(), store.runs.list()) == ([], 0, [])
    assert look_at(store, spec, host, text="one").plan_id == planned.plan_id


def test_a_plan_shows_no_secrets_and_keeps_no_facts(store: Store, host: FakeHost) -> None:
    class Rewrite(Copy):
        def probe(self, ctx: TaskContext) -> Probe:
            ctx.fact("unit", "hunter2", {"seen": True})
            return Probe(False, "the unit says hunter2")

    spec = graph(task("a", Rewrite("x"), changes_host=True))
    settings = {"text": "KEY=hunter2"}
    planned = preview(
        store,
        spec,
        lambda name: host,
        host="local",
        settings=settings,
        mask=lambda text: text.replace("hunter2", "***"),
    )
    assert planned.tasks[0].changes == (Change("file", "/opt/x", "written", "+KEY=***"),)
    assert "hunter2" not in str(planned)
    assert (store.events.count(), store.facts.list("unit")) == (0, [])


def test_a_plan_that_no_longer_fits_names_the_task(store: Store, host: FakeHost) -> None:
    spec = graph(task("a", Copy("x"), changes_host=True))
    planned = look_at(store, spec, host, text="one")
    check_plan(planned, look_at(store, spec, host, text="one"))
    with pytest.raises(PlanStaleError, match=r"task a was run .* now run"):
        check_plan(planned, look_at(store, spec, host, text="two"))
    host.do("make x")
    with pytest.raises(PlanStaleError, match=r"task a was run .* now confirm"):
        check_plan(planned, look_at(store, spec, host, text="one"))


def test_preview_of_what_an_earlier_run_did(store: Store, host: FakeHost) -> None:
    spec = graph(task("a", Effect("x"), changes_host=True), task("b", Measure(), "a"))
    runner(store, spec, host).run()
    assert [(item.key, item.action) for item in look_at(store, spec, host).tasks] == [("a", "reuse"), ("b", "run")]


def test_preview_of_a_host_that_is_away(store: Store) -> None:
    def away(name: str) -> Any:
        raise HostUnreachable("host local does not answer")

    with pytest.raises(HostUnreachable):
        preview(store, graph(task("a", Effect("x"))), away, host="local")


def test_follow_sees_every_event_of_another_process_and_ends_with_the_run(store: Store, tmp_path: Path) -> None:
    code = (
        "import sys; from tests.graph.stand_in import deploy_graph; from tests.graph.fake_host import FakeHost\n"
        "from pathlib import Path; from orchestrator.graph.runner import Runner\n"
        "from orchestrator.store.store import open_store\n"
        "host = FakeHost(Path(sys.argv[1])); store = open_store(f'sqlite:///{sys.argv[1]}/state.db')\n"
        "sys.stdin.readline(); Runner(store, deploy_graph(), lambda name: host, host='local').run('r1')"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, text=True)
    child.stdin.write("go\n")  # type: ignore[union-attr]
    child.stdin.flush()  # type: ignore[union-attr]
    ended: list[bool] = []

    def over() -> bool:
        ended.extend([True] * (child.poll() is not None))
        return bool(ended)

    followed = list(follow(store, "r1", until=over, poll_s=0.01))
    assert child.wait(60) == 0
    assert followed == list(history(store, "r1"))
    assert followed[-1].kind in ("run.finished", "lease.released")
    assert json.loads(to_line(followed[0]))["kind"] == "run.created"
    assert list(follow(store, "r1")) == followed


def test_an_export_is_one_self_contained_folder(store: Store, host: FakeHost, tmp_path: Path) -> None:
    result = runner(store, deploy_graph(), host).run()
    store.notes.add("decision", "go", "ada", "decide", result.run_id)
    folder = tmp_path / "ticket"
    written = export_run(store, result.run_id, folder)
    assert set(written) == {path for path in folder.rglob("*") if path.is_file()}
    assert json.loads((folder / "run.json").read_text())["id"] == result.run_id
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["seq"] for event in events] == [event.seq for event in history(store, result.run_id)]
    assert (folder / "logs" / "patch.log").read_text() == "made venv\nmade plugin\nmade manifest\n"
    assert (folder / "files" / "bench" / "rows.json").read_text() == '{"rows": []}'
    assert json.loads((folder / "metrics.json").read_text())[0]["data"]["value"] == 12.5
    assert json.loads((folder / "notes.json").read_text())[0]["text"] == "go"
    with pytest.raises(UsageError, match="not an empty folder"):
        export_run(store, result.run_id, folder)


def test_an_export_says_which_kept_files_lie_on_another_machine(store: Store, host: FakeHost, tmp_path: Path) -> None:
    """As a shared store looks from the machine of a colleague: rows without the files beside them."""
    result = runner(store, deploy_graph(), host).run()
    gone = next(item for item in store.artifacts.list(result.run_id) if item.task_key == "bench")
    gone.path.unlink()
    export_run(store, result.run_id, tmp_path / "ticket")
    assert [item.name for item in missing_files(store, result.run_id)] == [
        item.name for item in store.artifacts.list(result.run_id) if item.sha256 == gone.sha256
    ]
    index = json.loads((tmp_path / "ticket" / "files.json").read_text())
    assert {entry["file"] for entry in index if entry["sha256"] == gone.sha256} == {None}
    assert {(entry["task"], entry["name"], entry["size"]) for entry in index} >= {("bench", "rows.json", gone.size)}
    assert all((tmp_path / "ticket" / entry["file"]).is_file() for entry in index if entry["file"])


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("state.db*") if path.is_file())


def test_retention_keeps_what_may_be_needed(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    url = f"sqlite:///{tmp_path}/state.db"
    with open_store(url, clock=lambda: now[0]) as store:
        good, bad = graph(task("a", Do(_artifact))), graph(task("a", Break()))
        ids = []
        for spec in (good, good, good, bad, bad):
            ids.append(runner(store, spec).run().run_id)
            now[0] += 86400
        assert prune(store, 2.5 * 86400, dry_run=True).runs == (ids[1], ids[0])
        assert len(store.runs.list()) == 5
        pruned = prune(store, 0.0)
        assert set(pruned.runs) == {ids[0], ids[1], ids[3]}
        assert pruned.events > 0
        assert {run.id for run in store.runs.list()} == {ids[2], ids[4]}
        assert states(store, ids[2]) == {"a": "completed"}
        on_disk = disk_use(tmp_path)
        before, after = vacuum(store)
        assert after <= before
        assert after <= disk_use(tmp_path) < on_disk
        assert store.events.tail(run_id=ids[0]) == []
        assert store.events.latest(1, kinds=("store.pruned",))[0].data["runs"] == list(pruned.runs)


def test_two_processes_may_forget_runs_at_once(tmp_path: Path) -> None:
    now, together = 4_000_000_000.0, threading.Barrier(4)
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        run_id = runner(store, graph(task("a", Do(_many_artifacts)))).run().run_id
        with store.transaction() as tx:
            tx.execute("DELETE FROM artifacts WHERE run_id = ?", (run_id,))

    def forget(_: int) -> int:
        with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: now) as own:
            together.wait(30)
            return prune(own, 0.0).files

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(forget, range(4))) == 400


def test_evidence_kept_by_reuse_outlives_the_run_that_gave_it(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: now[0]) as store:
        action = Do(
            probe=lambda ctx: Probe(ctx.earlier is not None, "as before"),
            verify=lambda ctx: Evidence("looked", "fine", expires_after_s=1000.0),
        )
        first = runner(store, graph(task("a", action))).run()
        now[0] += 500
        second = runner(store, graph(task("a", action))).run()
        prune(store, 0.0)
        kept = store.evidence.get(store.tasks.get(second.run_id, "a").evidence_id or 0)
        assert kept.proved_by_run == first.run_id
        assert kept.expires_at == 1_800_001_000.0
        forgotten = f"run {first.run_id} completed it and has been forgotten since"
        assert ("forgotten", forgotten) in reasons(store, second.run_id, "a")


def _many_artifacts(ctx: TaskContext) -> Mapping[str, Any]:
    for number in range(400):
        ctx.artifact("log", f"{number}")
    return {}


def _artifact(ctx: TaskContext) -> Mapping[str, Any]:
    ctx.artifact("log.txt", ctx.run_id)
    return {}
