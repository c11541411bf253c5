"""The linear service, recorded as known-good: smoke tests, greedy samples, acceptance and speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from orchestrator.hosts.session import HostSession
from tasks.baseline_files import require_whole
from tasks.hostfacts import keep_releases
from tasks.knobs import knobs_of
from tasks.linear import linear_engine, linear_release, live_is_linear
from tasks.samples import RECORDED_PROMPTS, default_prompts, speed, take_samples, tokens_per_step
from tasks.smoke import run_checks, summary


class RecordLinear(Action):
    """Proves the service as found and keeps what a rollback is later compared with."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        prompts = [prompt.content_hash for prompt in default_prompts(RECORDED_PROMPTS)]
        return {"release": linear_release(ctx).id, "max_tokens": knobs_of(ctx).max_tokens, "prompts": prompts}

    def probe(self, ctx: TaskContext) -> Probe:
        require_whole(ctx.host.state_dir)  # a sweep begins here, and would read them only once its release is built
        release = linear_release(ctx).id
        good = {known.release for known in ctx.host.releases.known_good()}
        if ctx.earlier is not None and release in good:
            return Probe(True, f"{release} is recorded as known-good and unchanged")
        return Probe(False, f"{release} is not recorded as known-good for these prompts")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        manifest = linear_release(ctx)
        with linear_engine(ctx) as engine:
            checks = run_checks(ctx, engine.url, quick=True)
            samples = take_samples(engine.url, default_prompts(RECORDED_PROMPTS), knobs_of(ctx).max_tokens)
        body: dict[str, Any] = {
            "release": manifest.id,
            "samples": [sample.to_json() for sample in samples],
            "tokens_per_step": tokens_per_step(samples),
            "tok_s": speed(samples),
            "smoke": summary("the linear service", checks),
            "service": service_facts(ctx.host, "DFLASH"),
        }
        ctx.fact("samples", manifest.id, {"samples": body["samples"]})
        ctx.fact("smoke", "linear", body["smoke"])
        ctx.fact("service", ctx.host.name, {**body["service"], "tok_s": body["tok_s"]})
        return body

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("record-linear")
        steps, rate = found["tokens_per_step"], found["tok_s"]
        counts = found["smoke"]["counts"]
        said = (
            f"{counts['passed']} smoke checks passed, {steps:.2f} tokens per step, {rate:.1f} tok/s "
            f"over {len(found['samples'])} greedy prompts"
        )
        figures = {"tokens_per_step": steps, "tok_s": rate, "smoke": counts}
        ctx.host.releases.mark_known_good(found["release"], figures, ctx.run_id)
        keep_releases(ctx)
        return Evidence(f"linear service {found['release']}", said, figures)

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"release": output.get("release"), "ids": [sample["ids"] for sample in output.get("samples", [])]}


def service_facts(session: HostSession, algorithm: str, nodes: int | None = None) -> dict[str, Json]:
    """Where the live service answers and what it is, for summaries and the TUI."""
    status = session.services.status(session.unit)
    address = "127.0.0.1" if session.config.transport == "embedded" else session.config.address
    router = session.config.router
    port = router.port if router.enabled else session.config.service.port
    return {
        "url": f"http://{address}:{port}/v1",
        "port": port,
        "replicas": session.config.replicas,
        "algorithm": algorithm,
        "nodes": nodes,
        "pid": status.main_pid,
        "live_is_linear": live_is_linear(session),
    }
