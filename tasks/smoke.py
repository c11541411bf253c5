"""The OpenAI smoke suite as a task, against the canary or the live service."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from orchestrator.errors import HostError, OrchestrateError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.openai.client import Client
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.smoke import CheckResult, reference_of, run_smoke, smoke_passed
from tasks.linear import live_is_linear

Reference = Callable[[str, int], Sequence[int]]
Engine = Callable[[TaskContext], AbstractContextManager[Endpoint]]


class SmokeTest(Action):
    """Runs every check against the live service, or against the engine of the task `subject`, which `engine` opens."""

    def __init__(self, where: str, subject: str = "", engine: Engine | None = None, quick: bool = False) -> None:
        self._where = where
        self._subject = subject
        self._engine = engine
        self._quick = quick

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        subject = ctx.output(self._subject)
        return {"release": subject.get("release"), "nodes": subject.get("nodes"), "quick": self._quick}

    def probe(self, ctx: TaskContext) -> Probe:
        if self._subject and ctx.earlier is not None:
            return Probe(True, "the same release passed before")
        return Probe(False, "smoke tests have not run against this engine")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        opened = self._engine(ctx) if self._engine else ctx.host.http()
        with opened as url, self._reference(ctx) as reference:
            results = run_checks(ctx, url, quick=self._quick, reference=reference)
        found = summary(self._where, results)
        found["lost"] = lost_capabilities(ctx.output("record-linear").get("smoke"), found)
        ctx.fact("smoke", self._where, found)
        return found

    @contextlib.contextmanager
    def _reference(self, ctx: TaskContext) -> Iterator[Reference | None]:
        """Greedy ids of the live linear service, for the losslessness check of another engine."""
        if not self._subject or not live_is_linear(ctx.host):
            yield None
            return
        with ctx.host.http() as url:
            yield reference_of(url)

    def verify(self, ctx: TaskContext) -> Evidence:
        return evidence_of(ctx.output("smoke"), self._where)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"outcomes": {check["name"]: check["outcome"] for check in output.get("checks", [])}}


def run_checks(
    ctx: TaskContext, url: Endpoint, *, quick: bool, reference: Reference | None = None
) -> list[CheckResult]:
    """The suite with a log line per check; an error names the checks that failed."""
    with contextlib.suppress(HostError), Client(url) as client:
        client.models()  # a key that is refused is told once, not by each of twenty checks
    results = run_smoke(
        url,
        quick=quick,
        on_check=lambda r: log_check(ctx, r),
        reference=reference,
    )
    if not smoke_passed(results):
        failed = [r for r in results if r.ok is False]
        names = "; ".join(f"{r.name}: {r.detail}" for r in failed) or "no check could run"
        raise OrchestrateError(f"{len(failed)} of {len(results)} smoke checks failed: {names[:600]}.")
    return results


def log_check(ctx: TaskContext, result: CheckResult) -> None:
    ctx.check_cancelled()
    ctx.log(f"{result.outcome:<11} {result.name}: {result.detail}")


def summary(where: str, results: Sequence[CheckResult]) -> dict[str, Any]:
    counts = {word: sum(r.outcome == word for r in results) for word in ("passed", "failed", "not offered")}
    return {"where": where, "counts": counts, "checks": [r.to_json() for r in results]}


def lost_capabilities(before: Mapping[str, Json] | None, after: Mapping[str, Json]) -> list[str]:
    """Names of checks that passed on the linear service and that the new engine does not offer."""
    had = {check["name"] for check in (before or {}).get("checks", []) if check["ok"]}
    return sorted(check["name"] for check in after["checks"] if check["name"] in had and not check["ok"])


def evidence_of(found: Mapping[str, Json], where: str) -> Evidence:
    counts = found["counts"]
    lost = found.get("lost", [])
    missing = f"; the linear service offers, this one does not: {', '.join(lost)}" if lost else ""
    return Evidence(
        checked=f"OpenAI smoke suite against {where}",
        output=f"{counts['passed']} passed, {counts['failed']} failed, {counts['not offered']} not offered{missing}",
        data={"counts": counts, "lost": lost, "checks": [c["name"] for c in found["checks"] if c["ok"]]},
    )
