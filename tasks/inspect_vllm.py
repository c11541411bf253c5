"""Task: what vLLM on the host (if any) could do for DDTree. "Not installed" is an answer."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from tasks.inspecting import engine_part
from tasks.inspecting.probe import Ask, read_all, reader
from tasks.inspecting.shared import as_before, look_again, shared_inspection, shared_stamp

VALID_FOR_S = 3600.0


class InspectVllm(Action):
    """apply returns {vllm: facts or null}; verify finds the package file, or no copy, in a second look."""

    def probe(self, ctx: TaskContext) -> Probe:
        return as_before(ctx.host, ctx.earlier)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        return {"stamp": shared_stamp(ctx.host), "vllm": shared_inspection(ctx.host).vllm}

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        vllm = output["vllm"] or {}
        return {name: vllm.get(name) for name in ("version", "package_path", "dflash", "port")}

    def verify(self, ctx: TaskContext) -> Evidence:
        facts, _, servers = look_again(ctx.host, skip=("gpu",))
        ask = engine_part.vllm_ask(facts, servers)
        if ask is None:
            text = "vLLM is not installed: no process, no copy below the folders that were searched"
            return Evidence("a search of processes and folders", text, {"installed": False}, VALID_FOR_S)
        proof = Ask(ask.root, ["config/speculative.py"])
        files = read_all(reader(ctx.host.transport, facts), {"vllm": ask, "proof": proof})
        found = engine_part.vllm(files["vllm"], facts, servers) or {}
        size = len(files["proof"].texts.get("config/speculative.py", ""))
        text = f"vLLM {found['version']} at {found['package_path']}: DFlash {found['dflash']}, port: {found['port']}"
        data = {"installed": True, "version": found["version"], "port": found["port"], "speculative_py_bytes": size}
        return Evidence("the package's own source", text, data, VALID_FOR_S)
