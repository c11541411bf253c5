"""The graph `inspect`: engines, models, risks and a recommendation; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import UsageError
from orchestrator.graph.model import Action, Evidence, GraphSpec, Json, TaskContext, TaskSpec
from orchestrator.graph.registry import GraphRequest
from tasks.inspecting import inspect_folder
from tasks.inspecting.render import text
from tasks.plans.looking import look


class InspectFolder(Action):
    """A folder instead of a host: a copy of site-packages, an unpacked wheel, or a model. No host is contacted."""

    def __init__(self, path: str) -> None:
        self._path = path

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        try:
            document = inspect_folder(self._path).to_json()
        except (FileNotFoundError, ValueError) as error:
            raise UsageError(f"{error}.") from error
        return {**document, "text": text(document)}

    def verify(self, ctx: TaskContext) -> Evidence:
        found = ctx.output("inspect-folder")
        parts = [name for name in ("sglang", "vllm", "model") if found.get(name)]
        return Evidence(f"folder {self._path}", f"found {', '.join(parts)}", {"parts": parts})


def build(request: GraphRequest) -> GraphSpec:
    path = request.options.get("path")
    if path is None:
        return GraphSpec("inspect", look(), "Look at engines, models and hardware, and recommend.")
    task = TaskSpec("inspect-folder", f"Inspect the folder {path}", "inspect", InspectFolder(str(path)))
    return GraphSpec("inspect", (task,), "Look at engines or models in a folder.")
