"""What the program does, for every face alike: the command line, the TUI and scripts call these functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.documents import SUCCESS, encode, envelope, write_whole
from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.model import Change, GraphSpec
from orchestrator.graph.preview import PlannedTask, Preview, check_plan, preview
from orchestrator.graph.registry import GraphRequest, load_graph
from orchestrator.graph.runner import Runner, RunResult
from orchestrator.graph.session import Listener
from orchestrator.graph.todolist import STATUS_OF_STATE
from orchestrator.hosts.first_use import first_use, is_embedded_cpu
from orchestrator.hosts.guard import host_guard
from orchestrator.hosts.inventory import HostConfig, Inventory
from orchestrator.hosts.load import select_host
from orchestrator.hosts.notify import notify
from orchestrator.hosts.secrets import Masker
from orchestrator.hosts.session import HostSession, connect
from orchestrator.opening import Opening
from orchestrator.remote.pip import Progress
from orchestrator.report.place import report_path
from orchestrator.store.records import RunRecord, TaskRecord, moment
from orchestrator.store.store import Store

MEASURE = "measure"  # the phase of tasks whose figures are worth a report


@dataclass
class Workplace:
    """Where everything of one inventory lives: the folder of hosts.yaml, the store, the hosts."""

    home: Path
    inventory: Inventory
    store: Store
    masker: Masker = field(default_factory=Masker)
    progress: Progress = lambda text, done, total: None
    warn: Callable[[str], None] = lambda text: None

    def session(self, name: str, progress: Progress | None = None) -> HostSession:
        """Connect to a host by name, provisioning an embedded one on its first use; the caller closes the session."""
        session = connect(select_host(self.inventory, name), self.home, self.masker)
        try:
            if is_embedded_cpu(session):
                first_use(session, progress or self.progress)
        except BaseException:
            session.close()
            raise
        return session


def build_graph(
    name: str, host: HostConfig, settings: Mapping[str, str], options: Mapping[str, Any] | None = None
) -> GraphSpec:
    return load_graph(name, GraphRequest(host.name, host, dict(settings), dict(options or {})))


def run_graph(
    place: Workplace,
    graph: GraphSpec,
    host: HostConfig,
    settings: Mapping[str, str],
    *,
    resume: str | None = None,
    run_id: str | None = None,
    plan_file: Path | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    force: Iterable[str] = (),
    on_event: Listener | None = None,
) -> RunResult:
    """Run or resume a graph; raises what Runner.run raises, and PlanStaleError."""
    if plan_file is not None:
        check_plan(read_plan(plan_file), plan_graph(place, graph, host, settings))
    opening = Opening(place, on_event)
    runner = Runner(
        place.store, graph, opening.session, host=host.name, settings=settings, mask=place.masker.mask, guard=host_guard
    )
    result = runner.run(
        resume if resume else run_id, resume=bool(resume), only=only, skip=skip, force=force, on_event=opening.heard
    )
    if any(task.phase == MEASURE for task in graph.tasks) and not _report_of_measured(place, result.run_id):
        keep_report(place, result.run_id)
    for problem in notify(host, _ending(place, result, host), place.masker.mask):
        place.warn(problem)
    return result


def _ending(place: Workplace, result: RunResult, host: HostConfig) -> dict[str, Any]:
    """The document that is sent when a run has ended: that of `run --json`, with host and graph."""
    run = place.store.runs.get(result.run_id)
    body = {"host": host.name, "graph": run.graph, **run_document(place, result)}
    return envelope(result.exit_code, body, None if result.exit_code in SUCCESS else result.reason)


def _report_of_measured(place: Workplace, run_id: str) -> Path | None:
    """The report of the earlier run whose figures this run took over; None when it measured itself, or nothing."""
    from orchestrator.report.sweeps import measured_in

    measured = measured_in(place.store, run_id)
    path = report_path(place.home, measured) if measured and measured != run_id else None
    return path if path and path.exists() else None


def keep_report(place: Workplace, run_id: str) -> None:
    """Write the run's report beside the inventory; what goes wrong is told in the run's log, never ends the run."""
    from orchestrator.report.run_report import write_run_report

    try:
        write_run_report(place.store, run_id, report_path(place.home, run_id).parent)
    except (OSError, OrchestrateError) as error:
        place.store.events.append(run_id, None, "log", {"line": f"the run report could not be written: {error}"})


def plan_graph(place: Workplace, graph: GraphSpec, host: HostConfig, settings: Mapping[str, str]) -> Preview:
    """What running the graph would do now; changes nothing."""
    return preview(place.store, graph, place.session, host=host.name, settings=settings, mask=place.masker.mask)


def plan_document(plan: Preview, graph: GraphSpec) -> dict[str, Any]:
    """The plan as a document, which is also what a plan file holds."""
    specs = {task.key: task for task in graph.tasks}
    tasks = [
        {
            "key": task.key, "content": task.content, "phase": specs[task.key].phase, "priority": str(task.priority),
            "depends_on": list(specs[task.key].depends_on), "changes_host": specs[task.key].changes_host,
            "state": task.action, "reason": task.reason, "changes": [asdict(change) for change in task.changes],
        }
        for task in plan.tasks
    ]  # fmt: skip
    return {"plan_id": plan.plan_id, "graph": plan.graph, "host": plan.host, "tasks": tasks}


def plan_path(home: Path, plan: Preview) -> Path:
    """Where a plan file lies when nobody says otherwise; its folder is made."""
    folder = home / ".run"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"plan-{plan.plan_id}.json"


def read_plan(path: Path) -> Preview:
    """A plan file, as `orchestrate plan` wrote it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        tasks = tuple(
            PlannedTask(
                item["key"], item["content"], item["priority"], item["state"], item["reason"],
                tuple(Change(**change) for change in item["changes"]),
            )
            for item in data["tasks"]
        )  # fmt: skip
        return Preview(data["plan_id"], data["graph"], data["host"], tasks)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a plan file ({error}); `orchestrate plan GRAPH` writes one.") from error


def run_document(place: Workplace, result: RunResult) -> dict[str, Any]:
    """The JSON document of a run, as docs/contract.md describes it (without ok, exit_code and error)."""
    evidence = {item.id: item for item in place.store.evidence.of_run(result.run_id)}

    def task(record: TaskRecord) -> dict[str, Any]:
        proof = evidence.get(record.evidence_id) if record.evidence_id is not None else None
        return {
            "key": record.key, "content": record.content, "priority": record.priority.value,
            "status": STATUS_OF_STATE[record.state], "state": record.state.value, "attempts": record.attempts,
            "started_at": moment(record.started_at), "finished_at": moment(record.finished_at),
            "seconds": record.duration_s, "reason": record.reason,
            "evidence": {"checked": proof.checked, "output": proof.output, "sha256": proof.sha256} if proof else None,
        }  # fmt: skip

    outputs = {record.key: record.output or {} for record in result.tasks}
    report = _report_of_measured(place, result.run_id) or report_path(place.home, result.run_id)
    return {
        "run_id": result.run_id, "state": result.state.value, "reason": result.reason,
        "tasks": [task(record) for record in result.tasks],
        "verdict": verdict_of(outputs),
        "release": outputs.get("build-release", {}).get("release"),
        "service": outputs.get("cutover", {}) or outputs.get("record-linear", {}).get("service"),
        "report": outputs.get("roadmap", {}).get("path"),
        "run_report": str(report) if report.exists() else None,
    }  # fmt: skip


def stored_document(place: Workplace, run: RunRecord) -> dict[str, Any]:
    """The same of a run as the store has it now, whichever processes worked on it."""
    tasks = tuple(place.store.tasks.list(run.id))
    return run_document(place, RunResult(run.id, run.state, run.exit_code or 0, run.reason, tasks))


def verdict_of(outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The measured verdict, with the decision that followed from it."""
    measured = outputs.get("benchmark", {}).get("verdict")
    decided = outputs.get("decide") or {}
    if not measured and not decided:
        return None
    keys = ("decision", "budget", "ratio", "ci95", "n", "reason")
    verdict = {key: (measured or {}).get(key) for key in keys}
    if decided:
        verdict |= {"decision": decided["decision"], "by": decided["by"], "nodes": decided["nodes"]}
        verdict["reason"] = decided["why"]
    return verdict


def keep_last(home: Path, document: Mapping[str, Any]) -> Path:
    """Leave the newest run's document in `.run/last.json`."""
    folder = home / ".run"
    folder.mkdir(exist_ok=True)
    write_whole(folder / "last.json", encode(document))
    return folder / "last.json"
