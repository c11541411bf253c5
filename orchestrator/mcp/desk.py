"""What the server remembers while it lives: the store, the plans it made, and the runs it started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.cli.detached import DetachedRun, start_run, wait_begun
from orchestrator.errors import UsageError
from orchestrator.hosts import secrets
from orchestrator.hosts.load import load_inventory
from orchestrator.operations import Workplace
from orchestrator.store.records import RunRecord
from orchestrator.store.store import Store

START_WAIT_S = 45.0  # agents give up on a call after about a minute


@dataclass(frozen=True)
class Agreed:
    """A plan that this server made and showed: only such a plan may change a host."""

    plan_id: str
    graph: str
    host: str
    settings: Mapping[str, str]
    path: Path


@dataclass
class Desk:
    """One server: its inventory file, its store, and what its agent agreed to."""

    hosts_file: Path
    store_url: str
    store: Store
    masker: secrets.Masker = field(default_factory=secrets.Masker)
    plans: dict[str, Agreed] = field(default_factory=dict)
    started: dict[str, DetachedRun] = field(default_factory=dict)

    def place(self) -> Workplace:
        """The workplace as hosts.yaml says now; values behind its references are masked from here on."""
        inventory = load_inventory(self.hosts_file)
        self.masker.add(*secrets.known_values([config.model_dump() for config in inventory.hosts.values()]))
        return Workplace(self.hosts_file.parent, inventory, self.store, self.masker)

    def agreed(self, plan_id: str) -> Agreed:
        try:
            return self.plans[plan_id]
        except KeyError:
            raise UsageError(
                f"This server made no plan {plan_id}; call the tool plan, look at its changes, and give its plan_id."
            ) from None

    def start(self, plan: Agreed, resume: str | None = None) -> DetachedRun:
        """Start the agreed plan as a process that outlives this server; raises what kept it from beginning."""
        arguments = [plan.graph, "--host", plan.host, "--plan", str(plan.path)]
        for name, value in plan.settings.items():
            arguments += ["--set", f"{name}={value}"]
        run_id = resume or self.store.runs.new_id()
        run = start_run(self.hosts_file, self.store_url, run_id, arguments, new=resume is None)
        self.started[run_id] = run
        if wait_begun(self.store, run, START_WAIT_S) is None and run.exit_code is not None:
            raise run.refusal()
        return run

    def chosen(self, run_id: str | None) -> RunRecord:
        """The named run, or the newest; says what became of one that this server started and the store lacks."""
        started = self.started.get(run_id or "")
        try:
            run = self.store.runs.get(run_id) if run_id else self.store.runs.latest()
        except UsageError:
            if started is None:
                raise
            if started.exit_code is not None:
                raise started.refusal() from None
            raise UsageError(f"The run {run_id} is about to start; ask again in a few seconds.") from None
        if run is None:
            raise UsageError("There is no run yet; the tools plan and run start one.")
        return run
