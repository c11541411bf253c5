"""The engine held against an offline baseline of the served pair, step by step from its trace; linear by its counts."""

from __future__ import annotations

import json
import posixpath
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.model import Json, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.openai.endpoint import Endpoint
from tasks import baseline_files, host_tools
from tasks.baseline_files import KnownBaseline
from tasks.inspect_model import InspectModel
from tasks.knobs import knobs_of
from tasks.linear import linear_engine, linear_release
from tasks.samples import Sample, take_samples

PROMPTS = 8
RID = "baseline/"
TRACE_VARIABLE = "SGLANG_DDTREE_TRACE"


@dataclass(frozen=True)
class Judge:
    """A baseline with what it is asked: tree size, tokens per request, and the margin that counts as a tie."""

    baseline: KnownBaseline
    nodes: int
    max_tokens: int
    bound: float

    @property
    def new_tokens(self) -> int:
        return min(self.max_tokens, self.baseline.new_tokens)

    def tree(self, trace: str, samples: Sequence[Sample]) -> dict[str, Any]:
        """The report on a tree engine; OrchestrateError names prompt, step and node where it leaves the baseline."""
        ours = [line for line in trace.splitlines() if f'"{RID}' in line or "trace_full" in line]
        files: dict[str, Any] = {
            "--outputs": {RID + sample.prompt_id: list(sample.ids) for sample in samples},
            "--rids": {RID + sample.prompt_id: sample.prompt_id for sample in samples},
        }
        report = self._check(str(self.nodes), {"--trace": "\n".join(ours), **files})
        if report["prompts"] != len(samples):
            raise OrchestrateError(
                f"The engine's trace holds {report['prompts']} of the {len(samples)} baseline prompts; it was cut off "
                "or another process wrote it."
            )
        return self._passed("DDTREE", report)

    def linear(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The same for a linear engine, which has no trace: by its text, verify counts and histograms."""
        files = {
            "--counts": {sample.prompt_id: _count(sample) for sample in samples},
            "--outputs": {sample.prompt_id: list(sample.ids) for sample in samples},
        }
        return self._passed("The linear service", self._check("chain", files))

    def _check(self, mode: str, files: Mapping[str, Any]) -> dict[str, Any]:
        """Run the parity check of engine/baselines on this machine; it needs no model library."""
        with tempfile.TemporaryDirectory(prefix="orchestrate-parity-") as scratch:
            arguments = ["check", str(self.baseline.path), "--mode", mode, "--new-tokens", str(self.new_tokens)]
            arguments += ["--bound", str(self.bound)]
            for option, content in files.items():
                path = Path(scratch) / option.strip("-")
                path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
                arguments += [option, str(path)]
            return host_tools.run_here(arguments, fine=(0, 1))

    def _passed(self, who: str, report: dict[str, Any]) -> dict[str, Any]:
        if report["ok"]:
            return report
        faults = [one for one in report["differences"] if not one["explained"]]
        more = f" ({len(faults)} faults in {report['prompts']} prompts)" if len(faults) > 1 else ""
        said = str(report["error"] or "it made no step").rstrip(".")
        raise OrchestrateError(f"{who} leaves the offline baseline {self.baseline.path.name}: {said}{more}.")


def _count(sample: Sample) -> Json:
    return {"verify_ct": sample.steps, **({"histogram": list(sample.histogram)} if sample.histogram else {})}


def find_judge(ctx: TaskContext) -> Judge | str:
    """The judge of the served pair, or why there is none."""
    knobs = knobs_of(ctx)
    known = [baseline_files.read(path) for path in baseline_files.files(ctx.host.state_dir)]
    model = ctx.output("inspect-model").get("model") or InspectModel().apply(ctx)["model"]
    if not model.get("target") or not model.get("draft"):
        return "the models' files can't be seen: " + ("; ".join(model.get("notes", [])) or "no folder is known")
    paths = ["--target", model["target"]["path"], "--draft", model["draft"]["path"]]
    python = linear_release(ctx).environment.python
    try:
        found = host_tools.run_baselines(ctx.host, python, ["identity", *paths])
    except UsageError as error:  # no weights in a form that can be hashed: then no baseline is known to fit
        return f"the models can't be identified ({str(error).rstrip('.')})"
    hashes = found["target"]["sha256"], found["draft"]["sha256"]
    chosen = baseline_files.choose(known, *hashes, knobs.nodes, baseline_files.engine_policy(knobs.engine))
    return chosen if isinstance(chosen, str) else Judge(chosen, knobs.nodes, knobs.max_tokens, knobs.parity_bound)


@dataclass(frozen=True)
class TraceFile:
    """A file on the host into which one engine writes its trace; `user` is whom that engine runs as."""

    session: HostSession
    name: str
    user: str | None

    @property
    def path(self) -> str:
        return posixpath.join(self.session.root, "tools", f"{self.name}.trace.jsonl")

    @property
    def env(self) -> dict[str, str]:
        return {TRACE_VARIABLE: self.path}

    def prepare(self) -> None:
        """An empty file that the engine may append to, whatever an earlier attempt left."""
        host_tools.tools_folder(self.session)
        self.session.transport.put_bytes(b"", self.path, mode=0o600, sudo=self.session.privileged)
        if self.user and self.session.privileged:
            self.session.transport.run(["chown", self.user, self.path], sudo=True, check=True)

    def take(self) -> str:
        """What the engine wrote; the file is removed."""
        content = self.session.transport.get_bytes(self.path, sudo=self.session.privileged)
        self.session.transport.run(["rm", "-f", self.path], sudo=self.session.privileged, check=True)
        return content.decode("utf-8", "replace")


def hold_tree(ctx: TaskContext, judge: Judge, url: Endpoint, trace: TraceFile) -> dict[str, Json]:
    """Serve the baseline's prompts on the tree engine at `url` and judge them; the trace is kept with the run."""
    ctx.progress(f"against the offline baseline {judge.baseline.path.name}")
    samples = take_samples(url, judge.baseline.requests(PROMPTS), judge.new_tokens, RID)
    text = trace.take()
    ctx.artifact("trace.jsonl", text)
    return _kept(ctx, "parity-tree.json", judge.tree(text, samples))


def hold_linear(ctx: TaskContext, judge: Judge) -> dict[str, Json] | None:
    """The same prompts on the linear engine; None for a baseline that does not say what a chain accepts."""
    if not judge.baseline.has_chain:
        return None
    with linear_engine(ctx) as engine:
        samples = take_samples(engine.url, judge.baseline.requests(PROMPTS), judge.new_tokens)
    return _kept(ctx, "parity-linear.json", judge.linear(samples))


def _kept(ctx: TaskContext, name: str, report: dict[str, Any]) -> dict[str, Json]:
    ctx.artifact(name, json.dumps(report, indent=1))
    for difference in report["differences"]:
        ctx.log(f"explained by its margin: {difference['message']}")
    figures = {key: report[key] for key in ("prompts", "steps", "engine_tokens_per_step", "baseline_tokens_per_step")}
    return {**figures, "explained": len(report["differences"])}


def sentence(found: Mapping[str, Any]) -> str:
    """What the evidence says of the baseline."""
    if found.get("missing"):
        return f"no offline baseline was used: {found['missing']}"
    tree, linear = found["tree"], found.get("linear")
    ties = f", {tree['explained']} near-ties" if tree["explained"] else ""
    said = f"{tree['steps']} steps of {tree['prompts']} prompts as in the offline baseline {found['baseline']}{ties}"
    return said if linear is None else f"{said}, linear's {linear['steps']} verify steps too"
