"""Task: look at SGLang on the host (service, package, DFlash, hooks, flags) and at the hardware."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import OrchestrateError
from orchestrator.graph.model import Action, Evidence, Json, Probe, TaskContext
from tasks.inspecting.shared import as_before, look_again, shared_inspection, shared_stamp

VALID_FOR_S = 3600.0
PARTS = ("subject", "kind", "sglang", "hardware", "other_engines", "setting", "budgets", "predictions", "not_seen")


class ServiceChanged(OrchestrateError):
    """The service is not the one that was inspected a moment ago."""


class InspectSglang(Action):
    """Facts of the serving SGLang. verify looks again, on its own, and finds the same process and package.

    apply returns {subject, kind, sglang, hardware, other_engines, setting, budgets, predictions, not_seen, stamp}.
    """

    def probe(self, ctx: TaskContext) -> Probe:
        return as_before(ctx.host, ctx.earlier)

    def apply(self, ctx: TaskContext) -> Mapping[str, Json]:
        ctx.progress("reading processes, package and hardware")
        stamp = shared_stamp(ctx.host)
        document = shared_inspection(ctx.host).document
        for note in document["not_seen"]:
            ctx.log(f"not seen: {note}")
        self._seen = identity(document["sglang"])
        return {**{name: document[name] for name in PARTS}, "stamp": stamp}

    def identity(self, output: Mapping[str, Json]) -> Mapping[str, Json]:
        """Package, options, hooks, backends and GPUs; process ids, clocks and free memory may change."""
        sglang, gpu = output["sglang"] or {}, output["hardware"]["gpu"]
        names = ("version", "package_path", "dflash", "ddtree", "tree_backends", "hooks", "other_plugins", "flags")
        facts = {name: sglang.get(name) for name in names}
        given = (sglang.get("service") or {}).get("given")
        gpus = [[g["name"], g["driver"], g["memory_bytes"]] for g in gpu["gpus"]]
        fitting = [row["nodes"] for row in output["budgets"] if row["fits"]]
        return {**facts, "given": given, "gpus": gpus, "arch": gpu["arch"], "fitting": fitting}

    def verify(self, ctx: TaskContext) -> Evidence:
        seen = self._seen if hasattr(self, "_seen") else identity(shared_inspection(ctx.host).sglang)
        _, serving, _ = look_again(ctx.host, skip=("gpu", "copies"))
        now = (
            (serving.pid, serving.package.get("path"), serving.package.get("version"))
            if serving
            else (None, None, None)
        )
        if seen[0] != now[0] or (now[1] is not None and seen[1:] != now[1:]):
            raise ServiceChanged(
                f"{ctx.host.name}: the service changed while it was inspected (pid {seen[0]}, then {now[0]}); run inspect again"
            )
        text = f"pid {now[0]} imports sglang {now[2]} from {now[1]}" if serving else "no SGLang service runs"
        data = {"pid": now[0], "package_path": now[1], "version": now[2]}
        return Evidence("a second look at the serving process", text, data, expires_after_s=VALID_FOR_S)


def identity(sglang: Mapping[str, Json] | None) -> tuple[int | None, str | None, str | None]:
    """(pid, package path, version) of the inspected service; all None without one."""
    service = (sglang or {}).get("service")
    if not service:
        return None, None, None
    assert sglang is not None
    return service["pid"], sglang["package_path"], sglang["version"]
