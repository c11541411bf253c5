"""The regression watch: a new sweep must hold what an earlier one of the same host measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.bench.watch import Change, compare, regressed
from orchestrator.errors import BenchInvalidError, ExitCode, UsageError
from orchestrator.graph.model import Action, Evidence, Json, Outcome, Probe, TaskContext
from orchestrator.report.run_report import AGAINST
from orchestrator.report.sweeps import StoredSweep, measured_in, stored_sweeps, sweep_of
from tasks.knobs import knobs_of

KNOWN_GOOD = "known-good"


class HoldAgainst(Action):
    """The run fails when an arm became slower, or accepts less, by more than the margin; the release stays."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        return {"against": knobs.against, "margin": knobs.margin}

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "sweeps are compared in every run that asks for it")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        earlier = find_earlier(ctx, knobs.against or KNOWN_GOOD)
        before, now = sweep_of(ctx.store, earlier.run.id), sweep_of(ctx.store, ctx.run_id)
        if before is None or now is None:
            raise BenchInvalidError(
                f"There is no sweep to compare with {earlier.sentence}; run the task benchmark first."
            )
        changes = compare(before, now, knobs.margin)
        if not changes:
            raise BenchInvalidError(
                f"Nothing can be compared with {earlier.sentence}: no arm has valid rows of the same prompts in both; "
                "measure the same budgets, loads and prompts."
            )
        for change in changes:
            ctx.log(words(change))
        found = [change.to_json() for change in changes]
        return {AGAINST: earlier.run.id, "against": earlier.sentence, "changes": found}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("hold-against")
        changes = [Change(**{**change, "ci95": tuple(change["ci95"])}) for change in found["changes"]]
        worse = regressed(changes)
        least = min(changes, key=lambda change: change.ratio)
        said = f"{len(changes)} figures held against {found['against']}; the lowest: {words(least)}"
        outcome = None
        if worse:
            said = sentence(worse, found["against"], knobs_of(ctx).margin)
            outcome = Outcome(ExitCode.FAILED_UNCHANGED, said)
        checked = f"this sweep against {found['against']}"
        return Evidence(checked, said, {"changes": found["changes"]}, outcome=outcome)


def skip_reason(ctx: TaskContext) -> str | None:
    """Why nothing is compared, or None when a sweep is to be held against."""
    return None if knobs_of(ctx).against else "no earlier sweep was named (--against)"


def find_earlier(ctx: TaskContext, name: str) -> StoredSweep:
    """The sweep that a run, a release or `known-good` stands for; UsageError when there is none besides this run's.

    known-good: the newest release that was proven in a run with a sweep, as that run measured it; else the newest
    earlier sweep of a known-good release.
    """
    own = {ctx.run_id, measured_in(ctx.store, ctx.run_id)}
    sweeps = [sweep for sweep in stored_sweeps(ctx.store, ctx.host.name) if sweep.run.id not in own]
    if name == KNOWN_GOOD:
        good = ctx.host.releases.known_good()
        sweeps = [sweep for sweep in sweeps if sweep.of_other_server == bool(knobs_of(ctx).tree_server)]
        proofs = [sweep for one in good for sweep in sweeps if sweep.run.id == one.run_id]
        fitting = proofs or [sweep for one in good for sweep in sweeps if one.release in sweep.releases]
    else:
        fitting = [s for s in sweeps if name in s.releases or s.run.id == name or s.run.id.startswith(name)]
    if not fitting:
        known = ", ".join(sweep.run.id for sweep in sweeps[:5]) or "none yet; `orchestrate bench` makes one"
        raise UsageError(f"--against {name}: no earlier sweep on {ctx.host.name!r} fits; sweeps: {known}.")
    return fitting[0]


def words(change: Change) -> str:
    low, high = change.ci95
    return (
        f"{change.arm} at {change.concurrency} at once, {change.figure}: {change.before:.2f} -> {change.now:.2f} "
        f"{change.unit}, {change.ratio:.3f}x (95 % interval {low:.3f}–{high:.3f})"
    )


def sentence(worse: Sequence[Change], against: str, margin: float) -> str:
    """What fell, and whether the host is slower rather than the engine: then only speeds fell, and no speed against linear."""
    only_speed = all(change.figure == "speed" for change in worse)
    hint = "; no tree fell against linear, so look at the host first" if only_speed else ""
    told = "; ".join(words(change) for change in worse[:4])
    return f"{len(worse)} figures fell by more than {margin * 100:.1f} % against {against}: {told}{hint}."
