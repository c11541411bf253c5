"""The paired budget sweep as a task, and the decision that follows from it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.bench.arm import Arm, ArmFactory
from orchestrator.bench.gpu import read_sample
from orchestrator.bench.paired import run_paired_sweep
from orchestrator.bench.prompts import Prompt, load_prompts, set_hash
from orchestrator.bench.result import SweepResult
from orchestrator.bench.rows import HostSample, Row, fingerprint_of, loop_share, row_from_json
from orchestrator.bench.validity import LOOP_SHARE
from orchestrator.errors import BenchInvalidError, ExitCode, OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Outcome, Probe, TaskContext
from orchestrator.report.sweeps import MEASURED_IN, SWEEP
from tasks.knobs import Knobs, knobs_of
from tasks.linear import linear_engine
from tasks.patch import BUILD
from tasks.samples import RECORDED_PROMPTS, default_prompts, sample_from_json
from tasks.serving import SIDE_PURPOSES, side_name
from tasks.tree_arms import TreeArms

KEY = "benchmark"
ENGINES = ("release", "engine", "tree_server")  # those of the task's inputs that say which tree engine is measured


class BenchBudgets(Action):
    """Linear against each budget on the same host, same flags, adjacent blocks; rows are kept as they come."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        return {
            "release": ctx.output(BUILD).get("release"), "budgets": list(knobs.budgets), "pairs": knobs.pairs, "max_tokens": knobs.max_tokens,
            "group_size": knobs.group_size, "margin": knobs.margin, "engine": knobs.engine,
            "loads": list(knobs.loads), "prompts": set_hash(load_prompts(Path(knobs.prompts))) if knobs.prompts else "",
        }  # fmt: skip

    def probe(self, ctx: TaskContext) -> Probe:
        earlier = ctx.earlier or {}
        sound = bool(earlier) and earlier.get("verdict", {}).get("decision") != "invalid"
        if sound and knobs_of(ctx).against is None:
            return Probe(
                True, f"measured less than {knobs_of(ctx).fresh_s:.0f} s ago with the same release and settings"
            )
        return Probe(False, "this release has not been measured with these settings")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        knobs = knobs_of(ctx)
        widths = ", ".join(map(str, knobs.budgets))
        return (
            Change("process", ctx.host.unit, f"gets at most {knobs.loads[-1]} requests at once, if it serves linear"),
            Change("process", side_name(ctx.host, "bench"), f"DDTREE beside it for the budgets {widths}, then removed"),
        )

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        with self.trees(ctx) as tree:
            result = run_paired_sweep(
                lambda: _linear_arm(ctx, self.beside(ctx)),
                tree,
                self.budgets(ctx),
                self._prompts(ctx),
                pairs=knobs.pairs,
                max_tokens=knobs.max_tokens,
                margin=knobs.margin,
                on_row=lambda row: _keep_row(ctx, row),
                on_progress=lambda text, done, total: _progress(ctx, text, done, total),
                concurrencies=knobs.loads,
                group_size=knobs.group_size,
                max_live_load=min(1.0, knobs.max_live_load),
                tie_nats=knobs.parity_bound,
                done_rows=_rows_of_this_run(ctx),
                fingerprint=self.fingerprint(ctx),
            )
        return _kept(ctx, result)

    def fingerprint(self, ctx: TaskContext) -> str:
        """Of both engines: by release and knobs, as those that a run starts are other processes when it goes on."""
        inputs = self.inputs(ctx)
        engines = {name: inputs[name] for name in ENGINES if name in inputs}
        return fingerprint_of({"linear": ctx.output("record-linear").get("release"), **engines})

    def budgets(self, ctx: TaskContext) -> tuple[int, ...]:
        return knobs_of(ctx).budgets

    @contextlib.contextmanager
    def trees(self, ctx: TaskContext) -> Iterator[Callable[[int], ArmFactory]]:
        """What opens the tree's arm of a budget, for as long as the sweep lasts."""
        with TreeArms(ctx, self.budgets(ctx), gpu_sampler(ctx)) as trees:
            yield trees.arm

    def beside(self, ctx: TaskContext) -> tuple[int, ...]:
        """Main processes of servers under test that are no unit of ours."""
        return ()

    def _prompts(self, ctx: TaskContext) -> list[Prompt]:
        """The prompts asked for, or the recorded ones on which the linear service does not repeat itself."""
        given = knobs_of(ctx).prompts
        if given:
            return load_prompts(Path(given))
        looping = {
            sample.prompt_id: share
            for sample in map(sample_from_json, ctx.output("record-linear")["samples"])
            if (share := loop_share(sample.ids)) > LOOP_SHARE
        }
        for prompt_id, share in looping.items():
            ctx.log(f"left out: {prompt_id}, {share:.0%} of its linear output repeats itself")
        prompts = [prompt for prompt in default_prompts(RECORDED_PROMPTS) if prompt.id not in looping]
        if not prompts:
            raise BenchInvalidError("Every recorded prompt loops on the linear service; measure with other prompts.")
        return prompts

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output(KEY)
        verdict = found["verdict"]
        return Evidence(
            checked=f"paired sweep, {found['rows']} rows, {found['valid_rows']} valid",
            output=f"{verdict['decision']}: {verdict['reason']}",
            data={"verdict": verdict, "settings": found["settings"]},
            expires_after_s=knobs_of(ctx).fresh_s,
        )


def _kept(ctx: TaskContext, result: SweepResult) -> dict[str, Any]:
    document = result.to_json()
    ctx.artifact(SWEEP, json.dumps(document, indent=1, default=str))
    body = {key: document[key] for key in ("arms", "verdict", "settings", "skipped")}
    ctx.fact("bench.result", ctx.run_id, body)
    counts = {"rows": len(result.rows), "valid_rows": sum(row.valid for row in result.rows)}
    return {**body, **counts, MEASURED_IN: ctx.run_id}


def _keep_row(ctx: TaskContext, row: Row) -> None:
    ctx.fact("bench.row", f"C{row.concurrency}/B{row.budget}/{row.pair}/{row.arm}", row.to_json())
    labels = {"arm": row.arm, "budget": str(row.budget), "pair": str(row.pair), "load": str(row.concurrency)}
    ctx.metric("bench.tok_s", row.tok_s, **labels)
    why = "" if row.valid else " invalid: " + "; ".join(finding.reason for finding in row.findings)
    steps = row.counts.tokens_per_step
    ctx.log(
        f"{row.arm:<6} B={row.budget:<4} pair {row.pair}: {row.tok_s:7.1f} tok/s, "
        f"{steps:.2f} tokens per step{why}" if steps else f"{row.arm} B={row.budget} pair {row.pair}: no steps{why}"
    )  # fmt: skip


def _progress(ctx: TaskContext, text: str, done: float, total: float) -> None:
    ctx.check_cancelled()
    ctx.progress(text, done, total)


def _rows_of_this_run(ctx: TaskContext) -> list[Row]:
    """Rows of an attempt that was interrupted, as long as they are fresh; the newest of each key counts.

    Those of a sweep that came to its end are left aside: it is measured again because it counts no more.
    """
    since = ctx.store.clock() - knobs_of(ctx).fresh_s
    proof = ctx.store.tasks.get(ctx.run_id, KEY).evidence_id
    if proof is not None:
        since = max(since, ctx.store.evidence.get(proof).at)
    facts = ctx.store.facts.list("bench.row", run_id=ctx.run_id)
    newest = {fact.key: fact.data for fact in facts if fact.at > since}
    return [row_from_json(data) for data in newest.values()]


def gpu_sampler(ctx: TaskContext, more: Sequence[int] = ()) -> Callable[[], HostSample | None] | None:
    """Reads clocks, power, memory and foreign processes of the host's GPUs; None on a host that computes on its CPU.

    more: main processes under test besides the units.
    """
    if ctx.host.config.engine == "sglang-cpu":
        return None
    units = [ctx.host.unit, *(side_name(ctx.host, purpose) for purpose in SIDE_PURPOSES)]

    def run(command: str) -> str | None:
        done = ctx.host.transport.run(command.split(), timeout_s=30)
        return str(done.stdout) if done.ok else None

    def sample() -> HostSample | None:
        pids = [ctx.host.services.status(unit).main_pid for unit in units if ctx.host.services.definition(unit)]
        return read_sample(run, [*more, *(pid for pid in pids if pid)])

    return sample


@contextlib.contextmanager
def _linear_arm(ctx: TaskContext, beside: Sequence[int]) -> Iterator[Arm]:
    with linear_engine(ctx) as engine:
        sample = gpu_sampler(ctx, beside)
        yield Arm("linear", engine.url, 0, identity=engine.identity, sample=sample, flush=engine.may_flush)


class Decide(Action):
    """Adopt, keep linear, or inconclusive: from the verdict, or from an override that is recorded as such.

    obeyed_by: keys of the graph's tasks that are skipped unless the decision is to adopt.
    """

    def __init__(self, obeyed_by: Sequence[str] = ()) -> None:
        self.obeyed_by = tuple(obeyed_by)

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        knobs = knobs_of(ctx)
        return {
            "decide": knobs.decide, "reason": knobs.reason, "nodes": knobs.nodes, "accept": list(knobs.accept_loss),
            "adaptive": knobs.tree.adaptive,
        }  # fmt: skip

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "a decision is made in every run")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        found = decision(knobs_of(ctx), ctx.output(KEY).get("verdict"), ctx.output("smoke").get("lost", []))
        if found["lost"]:
            ctx.log(f"not offered by the tree, offered by the linear service: {', '.join(found['lost'])}")
        return found

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("decide")
        adopted = found["decision"] == "adopt"
        code = ExitCode.BENCH_INVALID if found["decision"] == "invalid" else ExitCode.NOT_ADOPTED
        outcome = None if adopted else Outcome(code, found["why"], skip=self.obeyed_by)
        return Evidence(f"decision ({found['by']})", f"{found['decision']}: {found['why']}", found, outcome=outcome)


def decision(knobs: Knobs, verdict: Mapping[str, Any] | None, lost: Sequence[str] = ()) -> dict[str, Any]:
    """What to do, by whom, and with how many nodes; OrchestrateError without verdict and override.

    lost: what the linear service offers and the tree does not. A measured gain is not adopted at that price unless
    the loss was accepted by name, nor one that holds at some of the loads only, unless the service chooses its width by
    the load (ddtree.adaptive); an override is a person's word and goes through, with the loss recorded.
    """
    if knobs.decide is not None:
        words = {"adopt": "adopt", "keep-linear": "keep linear"}
        nodes = knobs.nodes if knobs.decide == "adopt" else None
        measured = f" (measured: {verdict['decision']})" if verdict else " (nothing was measured)"
        why = knobs.reason + measured
        return {"decision": words[knobs.decide], "by": "override", "nodes": nodes, "why": why, "lost": list(lost)}
    if not verdict:
        raise OrchestrateError(
            "There is no measurement to decide from: run the benchmark, or set decide with --reason."
        )
    found = {
        "decision": verdict["decision"],
        "by": "measurement",
        "nodes": None,
        "why": verdict["reason"],
        "lost": list(lost),
    }
    if verdict["decision"] != "adopt":
        return found
    refused = [name for name in lost if name not in knobs.accept_loss]
    if refused:
        why = (
            f"{verdict['reason']}, but the tree does not offer {', '.join(refused)}, which the linear service does; "
            f"`--set accept_loss={','.join(refused)}` adopts all the same"
        )
        return {**found, "decision": "keep linear", "why": why}
    if verdict.get("conditional") and not knobs.tree.adaptive:
        return {**found, **_held_for_loads(verdict)}
    return {**found, "nodes": verdict.get("budget")}


def _held_for_loads(verdict: Mapping[str, Any]) -> dict[str, str]:
    """Keep linear where no budget gains at one of the loads, inconclusive where that load has not shown it yet."""
    budget, holds = verdict.get("budget"), verdict.get("holds_for", ())
    rest = [load for load in verdict.get("loads", ()) if load["concurrency"] not in holds]
    kept = any(load["decision"] == "keep linear" for load in rest)
    why = (
        f"{verdict['reason']}, but {budget} nodes were shown to pay only at {_listed(holds)} at once, not at "
        f"{_listed([load['concurrency'] for load in rest])}; `ddtree: {{adaptive: true}}` in hosts.yaml adopts them and lets "
        f"the service choose fewer nodes or linear by the load, `--set decide=adopt --set nodes={budget} --reason TEXT` "
        "adopts them as they are"
    )
    return {"decision": "keep linear" if kept else "inconclusive", "why": why}


def _listed(loads: Sequence[int]) -> str:
    return ", ".join(map(str, loads))
