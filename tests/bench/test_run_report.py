"""The report of a run that really ran, from the store into a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.graph.model import Action, Evidence, GraphSpec, Json, Probe, TaskContext, TaskSpec
from orchestrator.graph.runner import Runner
from orchestrator.openai.smoke import run_smoke
from orchestrator.report.run_report import run_report, sweep_of, write_run_report
from orchestrator.store.store import open_store
from tests.bench.stub_server import running_stub
from tests.bench.test_report import sweep
from tests.graph.fake_host import FakeHost


class Measure(Action):
    """Smoke-tests a stub and keeps a sweep, as the deployment does."""

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "not measured")

    def apply(self, ctx: TaskContext) -> dict[str, Json]:
        ctx.artifact("bench.json", json.dumps(sweep().to_json()))
        with running_stub() as stub:
            checks = [r.to_json() for r in run_smoke(stub.url, only=["chat", "wrong-key"])]
        suite = {"where": "the linear service", "checks": checks}
        return {"where": "the canary", "checks": checks, "smoke": suite}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("looked", "fine")


def test_a_run_becomes_a_folder_of_files(tmp_path: Path) -> None:
    graph = GraphSpec("measure", (TaskSpec("bench", "Benchmark tree budgets", "measure", Measure()),))
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        run = Runner(store, graph, lambda name: FakeHost(tmp_path), host="local").run()
        files = write_run_report(store, run.run_id, tmp_path / "out", against=run.run_id)
        report = run_report(store, run.run_id)
        assert sweep_of(store, run.run_id) == sweep()
        with pytest.raises(UsageError):
            run_report(store, "no-such-run")
    names = {str(path.relative_to(tmp_path / "out")) for path in files}
    assert {"report.html", "rows.csv", "arms.csv", "bench.json", "plots/speed-by-budget.svg"} <= names
    text = files[0].read_text()
    for expected in ("Benchmark tree budgets", "completed", "not offered", "Adopt", "now ÷ before"):
        assert expected in text
    assert [(c.name, c.outcome) for c in report.checks] == [
        (f"{name} ({where})", outcome)
        for where in ("the canary", "the linear service")
        for name, outcome in (("chat", "passed"), ("wrong-key", "not offered"))
    ]
    assert all(path.stat().st_size for path in files)
