"""The sweeps that stored runs made: finding one by its run, and which earlier one a release was measured in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.bench.result import SweepResult, sweep_from_json
from orchestrator.store.artifacts import Artifact
from orchestrator.store.records import RunRecord, moment
from orchestrator.store.store import Store

SWEEP = "bench.json"  # the artifact in which a run keeps its sweep
MEASURED_IN = "measured_in"  # in a task's output: the run whose sweep it speaks of
TREE_SERVER = "tree_server"  # in a task's output: the server started by hand whose sweep it is
RUNS_AT_MOST = 500


@dataclass(frozen=True)
class StoredSweep:
    """A run that kept a sweep, and the releases it used (linear and tree).

    of_other_server: its tree was a server that somebody had started by hand, not a release.
    """

    run: RunRecord
    releases: tuple[str, ...]
    of_other_server: bool = False

    @property
    def sentence(self) -> str:
        at = moment(self.run.created_at)
        return f"run {self.run.id} of {at.strftime('%Y-%m-%d') if at else 'an unknown day'}"


def sweep_of(store: Store, run_id: str) -> SweepResult | None:
    """The newest sweep that a run kept, or the one that it took over from an earlier run; None without any.

    Also None where a shared store knows the sweep, and the file lies on the machine that measured.
    """
    for holder in (run_id, measured_in(store, run_id)):
        kept = [artifact for artifact in store.artifacts.list(holder) if _is_here(artifact)] if holder else []
        if kept:
            return sweep_from_json(json.loads(kept[-1].path.read_text()), f"{SWEEP} of {holder}")
    return None


def measured_in(store: Store, run_id: str) -> str | None:
    """The run in which the sweep that this run speaks of was measured."""
    outputs = (task.output or {} for task in store.tasks.list(run_id))
    return next((str(found[MEASURED_IN]) for found in outputs if found.get(MEASURED_IN)), None)


def stored_sweeps(store: Store, host: str) -> Iterator[StoredSweep]:
    """Runs of a host that measured a sweep themselves, newest first."""
    for run in store.runs.list(host=host, limit=RUNS_AT_MOST):
        if any(_is_here(artifact) for artifact in store.artifacts.list(run.id)):
            outputs = [task.output or {} for task in store.tasks.list(run.id)]
            releases = tuple(dict.fromkeys(name for out in outputs if (name := _release(out))))
            yield StoredSweep(run, releases, any(out.get(TREE_SERVER) for out in outputs))


def _is_here(artifact: Artifact) -> bool:
    return artifact.name == SWEEP and artifact.path.exists()


def _release(output: Mapping[str, Any]) -> str:
    return str(output.get("release") or "")
