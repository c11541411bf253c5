"""From NEXTN, EAGLE or no speculation to linear DFLASH: the baseline that a tree is later measured against."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.release.build import with_launch
from orchestrator.release.found import ancestors
from orchestrator.release.manifest import Manifest
from tasks.hostfacts import keep_releases
from tasks.knobs import knobs_of
from tasks.launch import algorithm_of, linear_launch
from tasks.linear import found_release
from tasks.rollback import BackAsFound
from tasks.samples import (
    SAMPLE_PROMPTS,
    Sample,
    compare,
    default_prompts,
    sample_from_json,
    speed,
    take_samples,
    tokens_per_step,
)
from tasks.serving import side_engine, side_of, wait_ready
from tasks.smoke import run_checks, summary
from tasks.takeover import TakeOver

RECORD, PROVE = "record-found", "prove-dflash"


def start_release(ctx: TaskContext, replica: HostSession) -> Manifest:
    """What `deploy-dflash` starts from: the service as found, or a release that serves no DFLASH."""
    definition = replica.services.definition(replica.unit)
    if definition is not None and definition.overridden:
        for manifest in ancestors(replica.releases, definition.release):
            if manifest.kind == "found":
                return manifest
    return found_release(ctx, replica)


def draft_of(session: HostSession) -> str:
    """The draft's folder on the host."""
    model = session.config.model
    return posixpath.join(session.home, "models", model, "draft") if isinstance(model, str) else model.draft


def block_of(ctx: TaskContext) -> int:
    """Draft tokens of the service: as asked for, else the draft's own block; UsageError beyond that block."""
    session: HostSession = ctx.host
    path = posixpath.join(draft_of(session), "config.json")
    try:
        config = json.loads(session.transport.get_bytes(path, sudo=session.privileged))
    except (FileNotFoundError, ValueError) as error:
        raise OrchestrateError(
            f"Host {session.name!r} has no draft model at {draft_of(session)} (no config.json); download it, or "
            "correct model.draft in hosts.yaml."
        ) from error
    own = int((config.get("dflash_config") or {}).get("block_size") or config.get("block_size") or 16)
    wanted = knobs_of(ctx).block
    if wanted is not None and wanted > own:
        raise UsageError(
            f"--set block={wanted}: the draft at {draft_of(session)} makes blocks of {own} tokens at most."
        )
    return wanted or own


def dflash_release(ctx: TaskContext, replica: HostSession) -> Manifest:
    """The service as it was found, started as linear DFLASH: same environment, nothing copied."""
    found = start_release(ctx, replica)
    if algorithm_of(found.launch.argv) in ("DFLASH", "DDTREE"):
        raise UsageError(
            f"{replica.unit} on {replica.name!r} runs {algorithm_of(found.launch.argv)} already; deploy-ddtree starts "
            "from there."
        )
    return with_launch(found, found, linear_launch(found.launch, draft_of(replica), block_of(ctx)), "dflash")


class RecordFound(Action):
    """Proves the service as it is and keeps what it answers: the way back, and what DFLASH must equal."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"release": start_release(ctx, ctx.host).id, "max_tokens": knobs_of(ctx).max_tokens}

    def probe(self, ctx: TaskContext) -> Probe:
        release = start_release(ctx, ctx.host).id
        good = {known.release for known in ctx.host.releases.known_good()}
        if ctx.earlier is not None and release in good:
            return Probe(True, f"{release} is recorded as known-good and unchanged")
        return Probe(False, f"{release} is not recorded as known-good")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        found = start_release(ctx, ctx.host)
        definition = ctx.host.services.definition(ctx.host.unit)
        if definition is None or definition.argv != found.launch.argv:
            raise OrchestrateError(
                f"{ctx.host.unit} on {ctx.host.name!r} does not run as it was found; go back first "
                f"(`orchestrate rollback --to {found.id}`)."
            )
        wait_ready(ctx, ctx.host.unit, ctx.host.config.service.port)  # it may still be loading its model
        with ctx.host.http() as url:
            checks = run_checks(ctx, url, quick=True)
            samples = take_samples(url, default_prompts(SAMPLE_PROMPTS), knobs_of(ctx).max_tokens)
        ctx.fact("samples", found.id, {"samples": [sample.to_json() for sample in samples]})
        return {
            "release": found.id, "algorithm": algorithm_of(found.launch.argv), "smoke": summary("as found", checks),
            "samples": [sample.to_json() for sample in samples], "tok_s": speed(samples),
        }  # fmt: skip

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output(RECORD)
        figures = {"tok_s": found["tok_s"], "smoke": found["smoke"]["counts"], "algorithm": found["algorithm"]}
        ctx.host.releases.mark_known_good(found["release"], figures, ctx.run_id)
        keep_releases(ctx)
        said = f"{found['algorithm']} as found: {found['tok_s']:.1f} tok/s over {len(found['samples'])} greedy prompts"
        return Evidence(f"service {found['release']}", said, figures)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"release": output.get("release"), "ids": [sample["ids"] for sample in output.get("samples", [])]}


class ProveDflash(Action):
    """Linear DFLASH on a side port: same tokens as the service as found, drafts accepted, smoke tests passed."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"release": dflash_release(ctx, ctx.host).id}

    def probe(self, ctx: TaskContext) -> Probe:
        if ctx.earlier is not None:
            return Probe(True, "the same command was proven on this host")
        return Probe(False, "linear DFLASH has not been proven with these models")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        target = dflash_release(ctx, ctx.host)
        expected = recorded(ctx)
        with side_engine(ctx, side_of(ctx.host, "proof", target.launch)) as url:
            checks = run_checks(ctx, url, quick=True)
            got = take_samples(url, default_prompts(SAMPLE_PROMPTS), max(len(one.ids) for one in expected))
        differences = compare(expected, got)
        if differences:
            raise OrchestrateError(
                f"DFLASH does not give the tokens of the service as found: {differences[0]} "
                f"({len(differences)} of {len(got)} prompts); speculation must not change greedy output."
            )
        if not sum(sample.steps for sample in got):
            raise OrchestrateError("The engine makes no verify steps: it does not speculate.")
        found: dict[str, Any] = {"release": target.id, "block": block_of(ctx), "smoke": summary("DFLASH", checks)}
        before = speed(expected)
        ratio = speed(got) / before if before else None
        return {**found, "tokens_per_step": tokens_per_step(got), "tok_s": speed(got), "ratio": ratio}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output(PROVE)
        ratio = f", {found['ratio']:.2f}x the service as found (one request at a time)" if found["ratio"] else ""
        said = (
            f"{SAMPLE_PROMPTS} of {SAMPLE_PROMPTS} greedy outputs equal; {found['tokens_per_step']:.2f} tokens per step "
            f"with blocks of {found['block']}{ratio}"
        )
        return Evidence("linear DFLASH on a side port", said, found)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"release": output.get("release")}


class TakeOverDflash(TakeOver):
    """From the service as found to linear DFLASH, which becomes the known-good baseline."""

    algorithm = "DFLASH"

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"release": dflash_release(ctx, ctx.host).id}

    def target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return dflash_release(ctx, replica)

    def previous(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return start_release(ctx, replica)

    def expected(self, ctx: TaskContext) -> list[Sample]:
        return recorded(ctx)

    def keep(self, ctx: TaskContext, target: Manifest) -> None:
        """A rollback from the tree to this release is compared with these outputs, which it has just given."""
        ctx.fact("samples", target.id, {"samples": ctx.output(RECORD)["samples"]})


class BackToFound(BackAsFound):
    """After a failed run: the service as found is live again."""

    def _target(self, ctx: TaskContext, replica: HostSession) -> Manifest:
        return start_release(ctx, replica)


def recorded(ctx: TaskContext) -> list[Sample]:
    """What the service as found answered."""
    return [sample_from_json(one) for one in ctx.output(RECORD)["samples"]]
