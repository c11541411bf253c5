"""Which attention backends of an SGLang package can verify a tree, per GPU architecture and model kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.inspecting import source
from tasks.inspecting.source import SourceTree

REGISTRY = "srt/layers/attention/attention_registry.py"
MASK_USES = 3  # a backend that only hands the argument on mentions the mask once or twice
CPU_BACKENDS = frozenset({"intel_amx"})
OTHER_VENDORS = frozenset({"aiter", "wave", "ascend", "intel_xpu"})
# (lowest, highest) compute capability where the source itself states none.
CAPABILITIES = {
    "triton": (70, 999),
    "flashinfer": (75, 999),
    "fa3": (80, 90),
    "fa4": (90, 119),
    "trtllm_mha": (90, 129),
}
TOKEN_PAGES_ONLY = frozenset({"fa3"})  # its verify tables address single tokens: page size 1
# fa4 shares fa3's module, but no one has shown a tree on it; the plug-in refuses it.
UNPROVEN = frozenset({"fa4"})


@dataclass(frozen=True)
class Backend:
    """One attention backend: whether it reads a tree mask, where it runs, and what says so."""

    name: str
    tree: bool
    why: str
    file: str
    capability: tuple[int, int] | None
    mla: bool = False


@dataclass(frozen=True)
class AttentionFacts:
    backends: dict[str, Backend] = field(default_factory=dict)
    hybrid_allowed: dict[str, list[str]] = field(default_factory=dict)  # "sm_100", "sm_120" -> names

    def tree_backends(self, arch: str | None, hybrid: bool) -> list[str]:
        """Backends that verify a tree on `sm_NN` (or "cpu"); without arch, on any NVIDIA GPU."""
        names = [
            b.name
            for b in self.backends.values()
            if b.tree and not b.mla and runs_on(b, arch) and b.name not in UNPROVEN
        ]
        allowed = self.allowed_for_hybrid(arch) if hybrid else None
        return sorted(n for n in names if allowed is None or n in allowed)

    def allowed_for_hybrid(self, arch: str | None) -> list[str] | None:
        """The allow-list that the package asserts for hybrid models there; None if it asserts none."""
        number = capability_number(arch)
        if number is None or number < 100:
            return None
        return self.hybrid_allowed.get("sm_120" if number >= 120 else "sm_100")

    def refusal(self, name: str, arch: str | None, hybrid: bool) -> str | None:
        """Why this backend can't verify a tree there; None if it can."""
        backend = self.backends.get(name)
        if backend is None:
            return f"this sglang has no attention backend {name}"
        if not backend.tree:
            return f"{name} verifies chains only ({backend.why})"
        if not runs_on(backend, arch):
            return f"{name} does not run on {arch}"
        if name in UNPROVEN:
            return f"{name} has not been shown to verify trees"
        allowed = self.allowed_for_hybrid(arch) if hybrid else None
        if allowed is not None and name not in allowed:
            return f"{name} is not allowed for hybrid models on {arch} (allowed: {', '.join(allowed)})"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "backends": {
                n: {"tree": b.tree, "why": b.why, "file": b.file, "mla": b.mla, "capability": b.capability}
                for n, b in sorted(self.backends.items())
            },
            "hybrid_allowed": self.hybrid_allowed,
        }


def capability_number(arch: str | None) -> int | None:
    """90 for sm_90, 120 for sm_120a; None for cpu or nothing."""
    match = re.match(r"sm_?(\d{2,3})", arch or "")
    return int(match[1]) if match else None


def runs_on(backend: Backend, arch: str | None) -> bool:
    if arch == "cpu":
        return backend.name in CPU_BACKENDS
    if backend.name in CPU_BACKENDS or backend.name in OTHER_VENDORS:
        return False
    number = capability_number(arch)
    if number is None or backend.capability is None:
        return arch is None or backend.capability is not None
    return backend.capability[0] <= number <= backend.capability[1]


def read_attention(tree: SourceTree) -> AttentionFacts:
    """Facts from the registry and the backend modules; empty when the registry is not where it was."""
    body = source.module(tree, REGISTRY)
    backends = {}
    for name, function in _creators(body):
        path = _backend_file(function, tree)
        mentioned = path is not None and "custom_mask" in (tree.text(path) or "")
        uses, compares = _mask_uses(source.module(tree, path)) if path and mentioned else (0, False)
        enough = uses >= MASK_USES or (uses >= 1 and compares)
        why = f"{path} reads the verify mask" if enough else f"{path or 'its module'} reads no verify mask"
        backends[name] = Backend(name, enough, why, path or "", _capability(name, function), "mla" in name)
    return AttentionFacts(backends, _hybrid_allow_list(body))


def _creators(body: ast.Module | None) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body.body if body else ():
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if source.called_name(decorator) == "register_attention_backend" and isinstance(decorator, ast.Call):
                    name = source.literal(decorator.args[0]) if decorator.args else None
                    if isinstance(name, str):
                        yield name, node


def _backend_file(function: ast.FunctionDef, tree: SourceTree) -> str | None:
    """The first module below layers/attention that the creator imports and that the package has."""
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sglang."):
            base = node.module.removeprefix("sglang.").replace(".", "/")
            for path in (base + ".py", base + "/__init__.py"):
                if "attention" in path and tree.text(path) is not None:
                    return path
    return None


def _mask_uses(body: ast.Module | None) -> tuple[int, bool]:
    """How often code (not comments) names the mask, and whether it branches on topk > 1 or <= 1."""
    uses, compares = 0, False
    for node in ast.walk(body) if body else ():
        if isinstance(node, ast.Attribute):
            uses += node.attr == "custom_mask"
        elif isinstance(node, ast.Name):
            uses += node.id == "custom_mask"
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "topk":
            compares = True
    return uses, compares


def _capability(name: str, function: ast.FunctionDef) -> tuple[int, int] | None:
    for text in source.strings(function):
        match = re.search(r"SM>=(\d+) and SM<=(\d+)", text)
        if match:
            return int(match[1]), int(match[2])
    return CAPABILITIES.get(name)


def _hybrid_allow_list(body: ast.Module | None) -> dict[str, list[str]]:
    """The sets of backends that attn_backend_wrapper asserts for hybrid GDN models on Blackwell."""
    wrapper = source.find_function(body, "attn_backend_wrapper")
    branches = [n for n in ast.walk(wrapper) if isinstance(n, ast.If)] if wrapper else []
    for branch in branches:
        if "sm120" in ast.unparse(branch.test):
            consumer, datacentre = _allowed(branch.body, body), _allowed(branch.orelse, body)
            return {k: v for k, v in (("sm_120", consumer), ("sm_100", datacentre)) if v}
    for branch in branches:
        if "is_blackwell" in ast.unparse(branch.test):
            named = sorted(
                {
                    str(source.literal(n.comparators[0]))
                    for statement in branch.body
                    for n in ast.walk(statement)
                    if isinstance(n, ast.Compare) and isinstance(source.literal(n.comparators[0]), str)
                }
            )
            return {"sm_100": named, "sm_120": named} if named else {}
    return {}


def _allowed(statements: list[ast.stmt], body: ast.Module | None) -> list[str]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and source.called_name(node.targets[0]) == "allowed":
                value = source.literal(node.value)
                if value is None and isinstance(node.value, ast.Name):
                    value = _constant(body, node.value.id)
                if isinstance(value, set | list | tuple | frozenset):
                    return sorted(str(item) for item in value)
    return []


def _constant(body: ast.Module | None, name: str) -> object:
    for node in ast.walk(body) if body else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            value = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
            return source.literal(value)
    return None
