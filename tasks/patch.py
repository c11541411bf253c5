"""The patched release: a clone of the serving environment with the DDTree plugin, and its self-test on the host."""

from __future__ import annotations

import hashlib
import posixpath
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Change, Evidence, Json, Probe, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.release.build import BuildPlan, build_release, read_document, release_id
from orchestrator.release.bundle import INDEX, opened, read_bundle
from orchestrator.release.launch import in_environment
from orchestrator.release.manifest import Manifest
from orchestrator.release.wheels import build_plugin_wheel
from orchestrator.wholefile import replacing_folder
from tasks.hostfacts import keep_releases
from tasks.knobs import knobs_of
from tasks.launch import tree_launch
from tasks.linear import linear_release
from tasks.serving import SideEngine, side_of

BUILD = "build-release"


def build_plan(ctx: TaskContext) -> BuildPlan:
    """What the release of this run consists of: source environment, plugin wheel, launch."""
    session: HostSession = ctx.host
    source = linear_release(ctx)
    knobs = knobs_of(ctx)
    launch = tree_launch(source.launch, knobs.nodes, knobs.engine)
    if knobs.bundle is None:
        return BuildPlan(source, launch, build_plugin_wheel(session.wheel_dir), run_id=ctx.run_id)
    wheel, more = bundle_wheels(Path(knobs.bundle), session.wheel_dir)
    return BuildPlan(source, launch, wheel, more, run_id=ctx.run_id)


def bundle_wheels(folder: Path, wheel_dir: Path) -> tuple[Path, tuple[Path, ...]]:
    """The plugin and the other wheels of a bundle, checked and kept under the bundle's own checksum."""
    bundle = read_bundle(folder)
    kept = wheel_dir / f"bundle-{hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()[:16]}"
    if not kept.is_dir():
        with opened(folder) as (bundle, wheels), replacing_folder(kept) as part:
            shutil.copytree(wheels, part)
    plugin = kept / bundle.plugin
    return plugin, tuple(path for path in sorted(kept.glob("*.whl")) if path != plugin)


def release_of(ctx: TaskContext) -> Manifest:
    """The release that this run built."""
    name = ctx.output(BUILD).get("release")
    if not name:
        raise OrchestrateError("This run has no patched release yet; run the task build-release first.")
    manifest: Manifest = ctx.host.releases.read(str(name))
    return manifest


def tree_engine(ctx: TaskContext, purpose: str, nodes: int, env: Mapping[str, str] | None = None) -> SideEngine:
    """A side engine of the patched release with `nodes` tree nodes."""
    manifest = release_of(ctx)
    moved = in_environment(
        tree_launch(linear_release(ctx).launch, nodes, knobs_of(ctx).engine),
        manifest.environment.prefix,
        ctx.host.releases.layout.venv(manifest.id),
    )
    return side_of(ctx.host, purpose, moved.model_copy(update={"env": {**moved.env, **(env or {})}}))


class BuildRelease(Action):
    """Clones, installs offline, and writes the manifest; the source environment stays byte-identical."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"release": release_id(build_plan(ctx))}

    def probe(self, ctx: TaskContext) -> Probe:
        name = release_id(build_plan(ctx))
        if ctx.host.releases.exists(name):
            return Probe(True, f"release {name} is complete", {"release": name, **_figures(ctx.host, name)})
        return Probe(False, f"release {name} does not exist on {ctx.host.name}")

    def changes(self, ctx: TaskContext) -> Sequence[Change]:
        plan = build_plan(ctx)
        folder = ctx.host.releases.layout.release(release_id(plan))
        size = f"hard-link clone of {plan.source.environment.prefix}"
        return (Change("release", folder, f"{size}, plus {plan.wheel.name if plan.wheel else 'no wheel'}"),)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        def progress(text: str, done: float | None, total: float | None) -> None:
            ctx.check_cancelled()
            ctx.progress(text, done, total)

        manifest = build_release(ctx.host.releases, build_plan(ctx), progress)
        ctx.artifact("manifest.json", manifest.model_dump_json(indent=2))
        keep_releases(ctx)
        return {"release": manifest.id, **_figures(ctx.host, manifest.id)}

    def verify(self, ctx: TaskContext) -> Evidence:
        manifest = release_of(ctx)
        source = manifest.source_digest
        digest = ctx.host.releases.tree_digest(manifest.environment.prefix)
        if source is not None and digest != source:
            raise OrchestrateError(
                f"{manifest.environment.prefix} on {ctx.host.name!r} is not as it was when {manifest.id} was built; "
                "something else changed it, so build the release anew."
            )
        return Evidence(
            checked=f"release {manifest.id} and its source environment",
            output=f"{len(manifest.added)} files added, {len(manifest.changed)} replaced; source environment byte-identical",
            data={**_figures(ctx.host, manifest.id), "source_sha256": digest.sha256},
        )

    def undo(self, ctx: TaskContext) -> None:
        name = ctx.output(BUILD).get("release") or release_id(build_plan(ctx))
        if name not in ctx.host.releases.currents():
            ctx.host.releases.discard(str(name))

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"release": output.get("release")}


def _figures(session: HostSession, name: str) -> dict[str, Json]:
    manifest = session.releases.read(name)
    return {
        "source": manifest.source_release,
        "source_sha256": manifest.source_digest.sha256 if manifest.source_digest else None,
        "clone": manifest.clone_mode,
        "added": len(manifest.added),
        "changed": len(manifest.changed),
        "overrides": list(manifest.overrides),
    }


class SelfTest(Action):
    """Every op against its reference in a process of the release, and the hooks against the installed SGLang."""

    def inputs(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"device": ctx.host.config.engine}

    def probe(self, ctx: TaskContext) -> Probe:
        if ctx.earlier is not None:
            return Probe(True, "the same release passed on this host")
        return Probe(False, "the release has not been tested on this host")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        hooks = self._run(ctx, "hooks", "--json")
        document = read_document(hooks)
        bad = [row["target"] for row in document["hooks"] if not row["ok"]]
        if bad:
            raise OrchestrateError(
                f"{len(bad)} functions that the plugin overrides have changed: {', '.join(bad[:5])}."
            )
        lines = self._run(ctx, "selftest").strip().splitlines()
        return {"hooks": len(document["hooks"]), "sglang": document["sglang"], "selftest": lines[-1] if lines else ""}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("selftest")
        said = f"{found['hooks']} hooks fit SGLang {found['sglang']}; {found['selftest']}"
        return Evidence(f"self-test in {ctx.output(BUILD).get('release')}", said, found)

    def _run(self, ctx: TaskContext, *arguments: str) -> str:
        session: HostSession = ctx.host
        manifest = release_of(ctx)
        python = posixpath.join(session.releases.layout.venv(manifest.id), "bin", "python")
        done = session.transport.run(
            [python, "-m", "sglang_ddtree", *arguments],
            env=manifest.launch.env,
            sudo=session.privileged,  # the environment may lie where only the service's user may look
            timeout_s=1800,
            on_line=lambda _stream, line: ctx.log(line) if arguments[0] == "selftest" else None,
        )
        if not done.ok:
            told = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise OrchestrateError(
                f"The plugin's {arguments[0]} failed in release {manifest.id}: {told[-1] if told else 'no output'}"
            )
        return done.stdout
