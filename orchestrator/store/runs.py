"""Runs: one execution of a graph on a host."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import LockedError, UsageError
from orchestrator.graph.model import Outcome
from orchestrator.store.clock import Clock
from orchestrator.store.database import Database
from orchestrator.store.jsontext import canonical
from orchestrator.store.process import ProcessName, current_process, who
from orchestrator.store.records import RunRecord, RunState, outcome_to_json


class Runs:
    """Reads and writes runs; at most one process works on a run at a time."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def new_id(self) -> str:
        """Sorts by time, short enough to type: `r20260102-030405-9f3c`."""
        return time.strftime("r%Y%m%d-%H%M%S-", time.gmtime(self._clock())) + secrets.token_hex(2)

    def create(self, run_id: str, graph: str, host: str, definition: str, settings: Mapping[str, str]) -> RunRecord:
        with self._database.write() as tx:
            if tx.one("SELECT 1 FROM runs WHERE id = ?", (run_id,)):
                raise UsageError(
                    f"there is a run {run_id} already: `orchestrate run {graph} --resume {run_id}` goes on"
                )
            tx.execute(
                "INSERT INTO runs (id, graph, host, state, reason, settings_json, definition, process, started_by,"
                " started_from, created_at, number) VALUES (?, ?, ?, ?, '', ?, ?, '', ?, ?, ?,"
                " (SELECT coalesce(max(number), 0) + 1 FROM runs))",
                (run_id, graph, host, RunState.PENDING, canonical(dict(settings)), definition, who(), os.getcwd(),
                 self._clock()),
            )  # fmt: skip
        return self.get(run_id)

    def get(self, run_id: str) -> RunRecord:
        """The run with this id, or the only one whose id begins so."""
        with self._database.read() as tx:
            row = tx.one("SELECT * FROM runs WHERE id = ?", (run_id,))
            if row is None:
                rows = tx.all("SELECT * FROM runs WHERE substr(id, 1, ?) = ? LIMIT 2", (len(run_id), run_id))
                row = rows[0] if len(rows) == 1 and run_id else None
        if row is None:
            raise UsageError(f"there is no run {run_id}: `orchestrate history` lists them")
        return RunRecord.from_row(row)

    def list(self, host: str | None = None, graph: str | None = None, limit: int = 50) -> list[RunRecord]:
        """The newest runs first, in the order in which they began."""
        where = ""
        parameters: list[Any] = []
        for column, value in (("host", host), ("graph", graph)):
            if value is not None:
                where, parameters = f"{where} AND {column} = ?", [*parameters, value]
        with self._database.read() as tx:
            rows = tx.all(
                f"SELECT * FROM runs WHERE number >= 0{where} ORDER BY number DESC, id DESC LIMIT ?",
                (*parameters, limit),
            )
        return [RunRecord.from_row(row) for row in rows]

    def latest(self, host: str | None = None, graph: str | None = None) -> RunRecord | None:
        found = self.list(host, graph, limit=1)
        return found[0] if found else None

    def take(self, run_id: str, state: RunState) -> RunRecord:
        """This process works on the run from now on; refused while the process that did so lives."""
        with self._database.write():
            run = self.get(run_id)
            if run.state.active and may_live(run.process):
                raise LockedError(
                    f"run {run.id} is being worked on by {describe(run.process)}: wait for it, or end that process"
                )
            self._set(
                run.id, state=state, process=current_process().to_text(), cancel_reason=None, reason="",
                exit_code=None, finished_at=None,
            )  # fmt: skip
        return self.get(run_id)

    def set_state(self, run_id: str, state: RunState, reason: str = "") -> None:
        self._set(run_id, state=state, reason=reason)

    def finish(self, run_id: str, state: RunState, exit_code: int, reason: str) -> RunRecord:
        self._set(run_id, state=state, exit_code=exit_code, reason=reason, finished_at=self._clock())
        return self.get(run_id)

    def set_outcome(self, run_id: str, outcome: Outcome | None) -> None:
        self._set(run_id, outcome_json=outcome_to_json(outcome))

    def request_cancel(self, run_id: str, reason: str) -> RunRecord:
        """Asks the process that works on the run to stop after the current effect."""
        with self._database.write():
            run = self.get(run_id)
            if not run.state.active:
                raise UsageError(f"run {run.id} is {run.state}: there is nothing to cancel")
            if process_gone(run):
                raise UsageError(
                    f"the process of run {run.id} is gone, so there is nothing to cancel:"
                    f" `orchestrate run {run.graph} --resume {run.id}` looks up what is true and goes on"
                )
            if run.state is RunState.ROLLING_BACK:
                raise UsageError(f"run {run.id} is rolling back, which has to come to its end: it cannot be cancelled")
            self._set(run.id, cancel_reason=reason)
        return self.get(run.id)

    def _set(self, run_id: str, **columns: Any) -> None:
        assignments = ", ".join(f"{column} = ?" for column in columns)
        with self._database.write() as tx:
            tx.execute(f"UPDATE runs SET {assignments} WHERE id = ?", (*columns.values(), run_id))


def process_gone(run: RunRecord) -> bool:
    """Whether the process that should be working on the run certainly ended, as far as this machine can tell."""
    name = ProcessName.from_text(run.process)
    return run.state.active and name is not None and name.alive() is False


def may_live(process: str) -> bool:
    """False only when that process is certainly gone. One of another machine counts as living (its lease decides)."""
    name = ProcessName.from_text(process)
    return name is not None and name != current_process() and name.alive() is True


def describe(process: str) -> str:
    name = ProcessName.from_text(process)
    return f"process {name.pid}" if name else "an unknown process"
