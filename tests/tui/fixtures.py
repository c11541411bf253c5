"""Stores for the TUI's tests, filled through the real store by a scripted run with a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.graph.model import Action, Evidence, Outcome, Priority, State, TaskSpec
from orchestrator.graph.todolist import TodoList
from orchestrator.store.records import RunState, TaskRecord
from orchestrator.store.store import Store, open_store

START = 1_767_323_045.0  # 2026-01-02 03:04:05 UTC
RUN_ID = "r20260102-030405-9f3c"
EARLIER_ID = "r20260101-220000-1a2b"
HOST = "pro6000"


@dataclass
class Clock:
    """Stands still unless a script moves it."""

    now: float = START

    def __call__(self) -> float:
        return self.now


def spec(key: str, content: str, phase: str, *needs: str, **more: Any) -> TaskSpec:
    return TaskSpec(key, content, phase, Action(), depends_on=needs, **more)


DEPLOY = (
    spec("reach-host", "Reach the host over SSH and prove its key", "preflight"),
    spec("check-disk", "Check that the release fits on the disk", "preflight", "reach-host"),
    spec("inspect-sglang", "Look which SGLang the service really imports", "inspect", "reach-host"),
    spec("inspect-model", "Read the target's and the draft's configuration", "inspect", "inspect-sglang"),
    spec("measure-linear", "Measure linear DFlash before anything changes", "baseline", "inspect-model"),
    spec("clone-venv", "Clone the serving environment with hard links", "patch", "check-disk", "measure-linear",
         changes_host=True),
    spec("install-plugin", "Install the DDTree plugin in the clone", "patch", "clone-venv", changes_host=True),
    spec("prove-kernels", "Run the kernels' self-test on the host's device", "parity", "install-plugin"),
    spec("prove-lossless", "Compare tree and linear outputs token by token", "parity", "prove-kernels"),
    spec("start-canary", "Serve the release on the canary GPU", "deploy", "prove-lossless", changes_host=True),
    spec("smoke-canary", "Send the OpenAI smoke tests to the canary", "smoke", "start-canary"),
    spec("bench-budgets", "Compare budgets with linear in pairs", "benchmark", "smoke-canary"),
    spec("arm-deadman", "Arm the timer that restores the old service", "cutover", "bench-budgets", changes_host=True),
    spec("switch-service", "Switch the service to the release", "cutover", "arm-deadman", changes_host=True),
    spec("disarm-deadman", "Disarm the timer over a fresh login", "cutover", "switch-service", changes_host=True),
    spec("write-roadmap", "Write down what was decided and why", "report", "bench-budgets", priority=Priority.LOW),
)  # fmt: skip


@dataclass
class Script:
    """Moves the tasks of one run through the same store calls as the runner makes."""

    store: Store
    clock: Clock
    run_id: str
    host: str = HOST
    tasks: dict[str, TaskRecord] = field(default_factory=dict)

    @staticmethod
    def begin(
        store: Store, clock: Clock, run_id: str = RUN_ID, specs: Iterable[TaskSpec] = DEPLOY, host: str = HOST,
        graph: str = "deploy-ddtree",
    ) -> Script:  # fmt: skip
        specs = tuple(specs)
        with store.transaction() as tx:
            store.runs.create(run_id, graph, host, "0123456789abcdef", {})
            tx.execute(
                "UPDATE runs SET started_by = 'ada@workbench', started_from = '/srv/ops' WHERE id = ?", (run_id,)
            )
            store.tasks.create(run_id, specs, host)
            store.events.append(run_id, None, "run.created", {"graph": graph, "host": host, "by": "ada@workbench"})
        script = Script(store, clock, run_id, host)
        script.tasks = {task.key: task for task in store.tasks.list(run_id)}
        store.runs.take(run_id, RunState.RUNNING)
        script.event(None, "run.started", was="pending", by="ada@workbench")
        return script

    def event(self, key: str | None, kind: str, /, **data: Any) -> None:
        self.store.events.append(self.run_id, key, kind, data)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def change(self, key: str, state: State, **columns: Any) -> None:
        self.tasks[key] = self.store.tasks.change(self.tasks[key], state, **columns)

    def start(self, key: str) -> None:
        attempts = self.tasks[key].attempts + 1
        with self.store.transaction():
            self.change(key, State.IN_PROGRESS, step="probing", attempts=attempts, started_at=self.clock(),
                        claimed_by="ada@workbench", reason="")  # fmt: skip
            self.event(key, "task.claimed", attempt=attempts)
            self.event(key, "task.probed", satisfied=False, reason="nothing is known yet", facts={})
            self.change(key, State.IN_PROGRESS, step="applying", began=True)
            self.event(key, "task.applying", why="it has not run before with this graph and host")

    def log(self, key: str, *lines: str) -> None:
        for line in lines:
            self.wait(0.4)
            self.event(key, "log", line=line)

    def finish(self, key: str, seconds: float = 4.0, output: str = "as expected", **data: Any) -> None:
        self.wait(seconds)
        task = self.tasks[key]
        outcome = data.pop("outcome", None)
        with self.store.transaction():
            kept = self.store.evidence.add(
                self.run_id, key, Evidence(f"looked again at {key} from the outside", output, data, outcome=outcome)
            )
            took = self.clock() - (task.started_at or self.clock())
            self.change(key, State.COMPLETED, step="", evidence_id=kept.id, finished_at=self.clock(), duration_s=took)
            self.event(key, "task.completed", evidence=kept.id, checked=kept.checked, output=output,
                       sha256=kept.sha256, reason="")  # fmt: skip

    def fail(self, key: str, reason: str) -> None:
        with self.store.transaction():
            self.change(key, State.FAILED, reason=reason, finished_at=self.clock(), duration_s=3.0)
            self.event(key, "task.failed", reason=reason, step="applying", traceback="")

    def fact(self, key: str | None, kind: str, name: str, data: Mapping[str, Any]) -> None:
        with self.store.transaction():
            self.event(key, "fact", kind=kind, key=name)
            self.store.facts.add(kind, name, data, self.host, self.run_id, key)

    def end(self, state: RunState, code: int, reason: str = "") -> None:
        with self.store.transaction():
            self.store.runs.finish(self.run_id, state, code, reason)
            self.event(None, "run.finished", state=state, exit_code=code, reason=reason)


def new_store(folder: Path, clock: Clock, url: str = "") -> Store:
    return open_store(url or f"sqlite:///{folder / 'state.db'}", clock=clock)


def earlier_run(store: Store, clock: Clock) -> Script:
    """A whole run of the day before that ended with "keep linear"; it is what estimates rest on."""
    clock.now = START - 18_000
    script = Script.begin(store, clock, EARLIER_ID)
    seconds = {"measure-linear": 95.0, "clone-venv": 22.0, "bench-budgets": 640.0, "prove-kernels": 41.0}
    for item in DEPLOY[:12]:
        script.start(item.key)
        script.finish(item.key, seconds.get(item.key, 5.0))
    for item in DEPLOY[12:15]:
        script.change(item.key, State.SKIPPED, reason="measured: keep linear", finished_at=clock())
        script.event(item.key, "task.skipped", reason="measured: keep linear")
    script.start("write-roadmap")
    script.finish("write-roadmap", 1.0, outcome=Outcome(9, "measured: keep linear"))
    store.runs.set_outcome(EARLIER_ID, Outcome(9, "measured: keep linear"))
    script.end(RunState.COMPLETED, 9, "measured: keep linear")
    return script


def running_deploy(folder: Path, url: str = "") -> tuple[Store, Clock, Script]:
    """A deployment in the middle of its benchmark, with an earlier run, host facts and benchmark rows."""
    clock = Clock()
    store = new_store(folder, clock, url)
    earlier_run(store, clock)
    clock.now = START
    script = Script.begin(store, clock)
    hold_lease(script)
    for item in DEPLOY[:11]:
        script.start(item.key)
        script.log(item.key, f"working on {item.content[0].lower()}{item.content[1:]}")
        if item.key == "inspect-sglang":
            host_facts(script)
            script.event(item.key, "metric", name="layers", value=64, labels={"kind": "attention"})
        script.finish(item.key, 4.0, "as expected", figure=42)
    script.start("bench-budgets")
    bench_facts(script)
    script.log("bench-budgets", "pair 7 of 12: budget 32 against linear at 1 concurrent request",
               "[bold]not markup[/bold] and [/] neither, wide 漢字 ☕ and a tab\there",
               "a very long line " + "with many words " * 24)  # fmt: skip
    script.event("bench-budgets", "progress", text="pairs", done=7, total=12)
    some_todos(store)
    return store, clock, script


HOSTS = """\
hosts:
  pro6000: {address: 10.0.0.20, user: ada, connect_timeout_s: 1, model: {target: /models/target, draft: /models/draft}}
  local: {transport: embedded, service_driver: process, engine: sglang-cpu, model: tiny-hybrid}
"""


@dataclass
class Stage:
    """A folder with an inventory and a store, and the script that fills the store."""

    folder: Path
    store: Store
    clock: Clock
    script: Script
    shared: str = ""  # URL of a store that is not a file in the folder

    @property
    def url(self) -> str:
        return self.shared or f"sqlite:///{self.folder / 'state.db'}"

    @property
    def hosts_file(self) -> Path:
        return self.folder / "hosts.yaml"


def stage(folder: Path, shared: str = "") -> Stage:
    (folder / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    store, clock, script = running_deploy(folder, shared)
    return Stage(folder, store, clock, script, shared)


def some_todos(store: Store) -> None:
    todos = TodoList(store)
    todos.add("Ask who owns the drop-in 20-limits.conf", "high", "ada@workbench")
    todos.add("Order a spare disk: the release needs 14 GiB [bold]soon[/bold]", "medium", "ada@workbench")
    first = next(item for item in todos.items() if not item.bound)
    todos.claim(first.id, "ada@workbench")


def hold_lease(script: Script) -> None:
    lease = script.store.leases.acquire(script.host, "ada@workbench", script.run_id, ttl_s=60)
    assert lease.owner == "ada@workbench"


def host_facts(script: Script) -> None:
    key = "inspect-sglang"
    script.fact(key, "inspection", HOST, {"sglang": {"version": "0.5.20", "dflash": "linear", "ddtree": "none"}})
    script.fact(key, "service", HOST, {"url": "http://10.0.0.20:30000", "algorithm": "DFLASH", "nodes": 0,
                                       "accept_length": 4.31, "tok_s": 182.4, "pid": 41_207})  # fmt: skip
    script.fact(key, "gpu", HOST, {"gpus": [
        {"index": index, "name": "NVIDIA RTX PRO 6000", "memory_used_mib": 61_000 + 900 * index,
         "memory_total_mib": 97_887, "util": 12 * index % 100, "sm_clock_mhz": 2_100 + index} for index in range(8)
    ]})  # fmt: skip
    script.fact(key, "release", "found-3fa9c1", {"id": "found-3fa9c1", "state": "serving", "current": True,
                                                "known_good": True, "algorithm": "DFLASH", "nodes": 0,
                                                "since": START - 86_400})  # fmt: skip
    script.fact(key, "release", "ddtree-20260102-64", {"id": "ddtree-20260102-64", "state": "built", "current": False,
                                                      "known_good": False, "algorithm": "DDTREE", "nodes": 64,
                                                      "since": START + 60})  # fmt: skip
    script.fact(key, "deadman", HOST, {"armed": True, "fires_at": START + 300, "release": "found-3fa9c1"})
    script.fact(
        key, "drift", HOST, {"items": [{"what": "sglang.service", "detail": "drop-in 20-limits.conf was added"}]}
    )


def bench_facts(script: Script) -> None:
    """Pairs of budgets 16, 32 and 64 through the product's own row type; budget 64 has a row that does not count."""
    from tests.tui.benchrows import rows

    for row in rows():
        name = f"B{row.budget}/{row.pair}/{row.arm}"
        script.fact("bench-budgets", "bench.row", name, json.loads(json.dumps(row.to_json())))
