"""The engine parts of an inspection: SGLang, vLLM and engines that are only named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.inspecting import engine_hooks, sglang_source, vllm_source
from tasks.inspecting.attention import AttentionFacts
from tasks.inspecting.flags import unknown_options
from tasks.inspecting.probe import Ask, RemoteFiles
from tasks.inspecting.serving import UNSUPPORTED, Serving, package_conflict, unused_copies
from tasks.inspecting.source import FolderTree, SourceTree
from tasks.inspecting.system import read_limits

PLUGIN_GROUP = "sglang.srt.plugins"
OWN_PLUGINS = re.compile(r"^sglang[-_](ddtree|cpu)$")
ARCHITECTURES = ("cpu", "sm_86", "sm_90", "sm_100", "sm_120")


def sglang_ask(facts: Mapping[str, Any], serving: Serving | None) -> Ask | None:
    """The source that `sglang` reads; None when there is no package, or none that can be told from others."""
    path, _ = _package(facts, serving)
    wanted = [*sglang_source.FILES, *engine_hooks.source_files()]
    return Ask(path, wanted, sglang_source.GLOBS) if path else None


def sglang(
    files: RemoteFiles | None, facts: Mapping[str, Any], serving: Serving | None, arch: str | None, hybrid: bool
) -> dict[str, Any] | None:
    """The contract's `sglang` object from what `sglang_ask` asked for; None when no copy was found at all."""
    serves = serving is not None and serving.engine == "sglang"
    path, kind = _package(facts, serving)
    copies = [c for c in unused_copies(facts, [path] if path else []) if c["package"] == "sglang"]
    if path is None or files is None:
        return {"version": None, "package_path": None, "service": None, "unused_copies": copies} if copies else None
    version = (serving.package.get("version") if serves and serving else None) or None
    found = sglang_source.read_sglang(files.tree(), version)
    document = describe_sglang(files.tree(), found, arch, hybrid)
    plugins = [p for p in (serving.plugins if serves and serving else ()) if p["group"] == PLUGIN_GROUP]
    own = next((p for p in plugins if p["dist"].replace("-", "_") == "sglang_ddtree"), None)
    if document["ddtree"] == "none" and own:
        document["ddtree"] = "plugin"
    document.update(
        package_path=path,
        package_kind=kind,
        service=None,
        plugins=plugins,
        other_plugins=[p for p in plugins if not OWN_PLUGINS.match(p["dist"])],
        unused_copies=copies,
        shadowed=list(serving.package.get("shadowed", [])) if serves and serving else [],
    )
    if serves and serving:
        document["conflict"] = package_conflict(serving)
        document["service"] = _service(serving, found.options)
        document["flags"] = [
            vars(s)
            for s in unknown_options(serving.launch_args, document["version"] or "0.5.23", found.options or None)
        ]
        document["backend_refusal"] = _backend_refusal(serving, found.attention, arch, hybrid)
    return document


def describe_sglang(
    tree: SourceTree, found: sglang_source.SglangSource, arch: str | None, hybrid: bool
) -> dict[str, Any]:
    """Facts of one package for a GPU architecture and a model kind, hook points included."""
    document = found.to_json()
    attention = document.pop("attention")
    return {
        **document,
        "hybrid": hybrid,
        "tree_backends": found.attention.tree_backends(arch, hybrid),
        "backends": attention["backends"],
        "hybrid_allowed": attention["hybrid_allowed"],
        "hooks": [state.to_json() for state in engine_hooks.check_hooks(tree, found.version)],
        "supported_versions": sorted(engine_hooks.supported_lines()),
    }


def _package(facts: Mapping[str, Any], serving: Serving | None) -> tuple[str | None, str | None]:
    """(folder, kind) that SGLang's service imports; without one, the only copy on the host."""
    if serving is not None and serving.engine == "sglang":
        return serving.package.get("path"), serving.package.get("kind")
    copies = [c for c in facts["copies"] if c["package"] == "sglang"]
    return (copies[0]["path"], "only copy on the host") if len(copies) == 1 else (None, None)


def _service(serving: Serving, known: Mapping[str, Any]) -> dict[str, Any]:
    given = serving.given(known)
    return {
        "pid": serving.pid,
        "unit": serving.unit,
        "port": serving.port,
        "user_id": serving.user_id,
        "argv": serving.argv,
        "interpreter": serving.interpreter,
        "prefix": serving.prefix,
        "cwd": serving.cwd,
        "algorithm": serving.algorithm,
        "given": given,
        "options": {**given, **{k: v for k, v in serving.resolved.items() if not isinstance(v, dict | list)}},
        "limits": read_limits(serving.limits),
        "env": dict(serving.env) if serving.env is not None else None,
        "distributions": {
            name: version
            for name, version in serving.distributions.items()
            if re.match(
                r"sglang|sgl-|torch|triton|flashinfer|flash-attn|transformers|vllm|nvidia-c|xgrammar|numpy", name
            )
        },
    }


def _backend_refusal(serving: Serving, attention: AttentionFacts, arch: str | None, hybrid: bool) -> str | None:
    """Why the backend that runs verify now can't verify a tree; verify runs on prefill's when both are named."""
    name = serving.option("prefill_attention_backend") or serving.option("attention_backend")
    return attention.refusal(str(name), arch, hybrid) if name and attention.backends else None


def vllm_ask(facts: Mapping[str, Any], servers: Sequence[Serving]) -> Ask | None:
    """The source that `vllm` reads: of the serving copy, else of the first one found; None when there is none."""
    serving = _serving_vllm(servers)
    copies = [c for c in facts["copies"] if c["package"] == "vllm"]
    path = (serving.package.get("path") if serving else None) or (copies[0]["path"] if copies else None)
    return Ask(path, vllm_source.FILES, vllm_source.GLOBS) if path else None


def vllm(files: RemoteFiles | None, facts: Mapping[str, Any], servers: Sequence[Serving]) -> dict[str, Any] | None:
    """The contract's `vllm` object from what `vllm_ask` asked for; None when there is no vLLM."""
    if files is None:
        return None
    serving = _serving_vllm(servers)
    known = {copy["path"]: copy["version"] for copy in facts["copies"]}
    version = serving.package.get("version") if serving else known.get(files.root)
    service = (
        {"pid": serving.pid, "unit": serving.unit, "port": serving.port, "argv": serving.argv} if serving else None
    )
    return {**vllm_source.read_vllm(files.tree(), version).to_json(), "package_path": files.root, "service": service}


def _serving_vllm(servers: Sequence[Serving]) -> Serving | None:
    return next((server for server in servers if server.engine == "vllm"), None)


def unsupported(servers: Sequence[Serving]) -> list[dict[str, Any]]:
    """Engines that serve here and that this program does not handle."""
    return [
        {"engine": UNSUPPORTED.get(s.engine, s.standalone), "pid": s.pid, "unit": s.unit, "why": _why_not(s)}
        for s in servers
        if s.engine in UNSUPPORTED or s.standalone
    ]


def _why_not(server: Serving) -> str:
    if server.engine in UNSUPPORTED:
        return f"{UNSUPPORTED[server.engine]} is not supported: no DDTree, no plug-in interface"
    return (
        f"a script of its own: {' '.join(server.argv)[:120]}; it is left running and keeps its memory. "
        "`orchestrate load URL` measures it beside the service; stop it yourself to free what it holds"
    )


def folder_sglang(folder: Path) -> dict[str, Any] | None:
    path = _package_folder(folder, "sglang", "srt")
    if path is None:
        return None
    tree = FolderTree(path)
    found = sglang_source.read_sglang(tree)
    document = describe_sglang(tree, found, None, False)
    attention = found.attention
    by_arch = {
        arch: {kind: attention.tree_backends(arch, kind == "hybrid") for kind in ("dense", "hybrid")}
        for arch in ARCHITECTURES
    }
    return {
        **document,
        "package_path": str(path),
        "package_kind": "folder",
        "service": None,
        "tree_backends_by_arch": by_arch,
    }


def folder_vllm(folder: Path) -> dict[str, Any] | None:
    path = _package_folder(folder, "vllm", "engine")
    return (
        {**vllm_source.read_vllm(FolderTree(path)).to_json(), "package_path": str(path), "service": None}
        if path
        else None
    )


def _package_folder(folder: Path, package: str, mark: str) -> Path | None:
    for path in (folder / package, folder, folder / "python" / package):
        if path.name == package and (path / mark).is_dir():
            return path
    return None
