"""Task: target and draft as their files say, and whether they fit together."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from tasks.inspecting import Scope, model_part
from tasks.inspecting.probe import reader
from tasks.inspecting.shared import as_before, look_again, shared_inspection, shared_stamp

VALID_FOR_S = 3600.0


class ModelsDoNotFit(OrchestrateError):
    """Target or draft is missing or unreadable, or the draft was not made for this target."""


class InspectModel(Action):
    """apply returns {model: {target, draft, compat, notes}}; verify fails when a model is missing or does not fit."""

    def probe(self, ctx: TaskContext) -> Probe:
        return as_before(ctx.host, ctx.earlier)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"stamp": shared_stamp(ctx.host), "model": shared_inspection(ctx.host).model}

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"model": output.get("model")}

    def verify(self, ctx: TaskContext) -> Evidence:
        facts, serving, _ = look_again(ctx.host, skip=("gpu", "copies"))
        _, _, model = model_part.read(reader(ctx.host.transport, facts), Scope.of(ctx.host.config), serving)
        for role in ("target", "draft"):
            if model[role] is None:
                why = "; ".join(model["notes"]) or f"no {role} is named by the service or in hosts.yaml"
                raise ModelsDoNotFit(f"{ctx.host.name}: the {role} model can't be judged ({why})")
        problems = model["compat"]["problems"]
        if problems:
            raise ModelsDoNotFit(f"{ctx.host.name}: the draft does not fit the target: {'; '.join(map(str, problems))}")
        target, draft = model["target"], model["draft"]
        text = f"{target['architecture']} ({target['kind']}, {target['layers']} layers) with a block-{draft['block']} draft"
        data = {"target": target["path"], "draft": draft["path"], "kind": target["kind"], "block": draft["block"]}
        return Evidence("configurations of both models", text, data, VALID_FOR_S)
