"""Task: what vLLM on the host (if any) could do for DDTree. "Not installed" is an answer."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from tasks.inspecting import Scope, engine_part
from tasks.inspecting.inspection import look
from tasks.inspecting.probe import Runs, read_files, reader

VALID_FOR_S = 86400.0


class InspectVllm(Action):
    """apply returns {vllm: facts or null}; verify finds the package file, or no copy, in a second look."""

    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "a host is looked at afresh in every run")

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"vllm": _found(ctx)[1]}

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        vllm = output["vllm"] or {}
        return {name: vllm.get(name) for name in ("version", "package_path", "dflash", "port")}

    def verify(self, ctx: TaskContext) -> Evidence:
        files, found = _found(ctx)
        if found is None:
            text = "vLLM is not installed: no process, no copy below the folders that were searched"
            return Evidence("a search of processes and folders", text, {"installed": False}, VALID_FOR_S)
        config = read_files(files, found["package_path"], ["config/speculative.py"])
        size = len(config.texts.get("config/speculative.py", ""))
        text = f"vLLM {found['version']} at {found['package_path']}: DFlash {found['dflash']}, port: {found['port']}"
        data = {"installed": True, "version": found["version"], "port": found["port"], "speculative_py_bytes": size}
        return Evidence("the package's own source", text, data, VALID_FOR_S)


def _found(ctx: TaskContext) -> tuple[Runs, dict[str, Json] | None]:
    """(how files of the host are read, facts of vLLM or None)."""
    facts, _, servers = look(ctx.host.transport, Scope.of(ctx.host.config), skip=("gpu",))
    files = reader(ctx.host.transport, facts)
    return files, engine_part.vllm(files, facts, servers)
