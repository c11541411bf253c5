"""What a plan can say before anything is done: unit files as diffs, memory and down-time, from facts and earlier runs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from orchestrator.graph.model import Change, TaskContext
from orchestrator.hosts.session import HostSession
from orchestrator.release.build import release_id
from orchestrator.release.launch import in_environment
from orchestrator.release.manifest import Manifest
from tasks.inspecting import Scope, hardware_part, memory, model_part
from tasks.inspecting.inspection import look
from tasks.inspecting.probe import reader
from tasks.knobs import knobs_of
from tasks.patch import build_plan

GIB = 1 << 30


def planned_release(ctx: TaskContext) -> Manifest:
    """The release of this run as it is, or as it will be once it is built: same id, environment and launch."""
    plan = build_plan(ctx)
    name = release_id(plan)
    if ctx.host.releases.exists(name):
        built: Manifest = ctx.host.releases.read(name)
        return built
    venv = ctx.host.releases.layout.venv(name)
    launch = in_environment(plan.launch, plan.source.environment.prefix, venv)
    return plan.source.model_copy(update={"id": name, "kind": "ddtree", "launch": launch})


def unit_changes(session: HostSession, target: Manifest) -> Sequence[Change]:
    """Every unit file that switching to `target` would write, as a diff against what lies there now."""
    definition = session.services.definition(session.unit)
    texts = definition.texts if definition is not None else {}
    changes = []
    for path, text in session.activation().files_of(target).items():
        before = texts.get(path, "")
        lines = difflib.unified_diff(before.splitlines(), text.splitlines(), f"a{path}", f"b{path}", lineterm="", n=3)
        what = "drop-in of the release, changed" if before else "drop-in of the release, new"
        changes.append(Change("unit", path, what, "\n".join(lines)))
    return changes


def engine_memory(ctx: TaskContext, nodes: int) -> str:
    """What an engine with this many tree nodes needs at least, by the maths of inspect; empty without model facts."""
    session = ctx.host
    scope = Scope.of(session.config)
    facts, serving, servers = look(session.transport, scope, skip=("copies",))
    target, draft, _ = model_part.read(reader(session.transport, facts), scope, serving)
    if target is None:
        return ""
    hardware = hardware_part.read(facts, servers)
    setting = model_part.setting_of(scope, serving, hardware, target, draft)
    row = memory.budget(target, draft, setting, nodes)
    fixed = sum(memory.static_bytes(target, draft, setting).values())
    context = setting.context * memory.token_bytes(target, draft, setting)
    where = "GPU memory on each GPU" if hardware["gpu"]["gpus"] else "host memory"
    return (
        f"{_size(fixed + row.bytes + context)} of {where} at least, {_size(row.bytes)} of them for the tree "
        f"of {nodes} nodes (T = {row.width}, {setting.running_requests} requests)"
    )


def _size(value: int) -> str:
    return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / (GIB >> 10):.1f} MiB"


def down_time(ctx: TaskContext, why_refused: str) -> str:
    """How long the unit would be away, from what earlier runs on this host recorded, and what clients notice of it.

    why_refused: why nothing stands in meanwhile; '' where an engine does.
    """
    if ctx.host.config.router.enabled:
        return "no down-time: the other replicas serve meanwhile"
    limit = f"after {knobs_of(ctx).confirm_s:.0f} s without proof the host goes back by itself"
    before, start = ctx.output("cutover").get("down_s"), ctx.output("canary").get("start_s")
    if before is not None:
        away = f"about {before:.0f} s, as in the last cut-over (start and proof)"
    elif start is not None:
        away = f"about {start:.0f} s, the time that the canary took to start"
    else:
        away = "as long as the engine starts, which is known once a canary has started here"
    if why_refused:
        return f"down for {away}, and connections are refused meanwhile, because {why_refused}; {limit}"
    return f"away for {away}, and no connection is refused, because an engine stands in; {limit}"
