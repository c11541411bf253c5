"""What a vLLM package can do for tree speculation, read from its source, and whether DDTree could be ported to it."""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.inspecting import source
from tasks.inspecting.sglang_source import read_version
from tasks.inspecting.source import SourceTree

FILES = (
    "version.py",
    "_version.py",
    "config/speculative.py",
    "plugins/__init__.py",
    "v1/attention/backends/gdn_attn.py",
)
GLOBS = ("v1/spec_decode/*.py", "v1/attention/backends/tree_attn.py", "v1/worker/gpu/spec_decode/*.py")


@dataclass(frozen=True)
class VllmSource:
    """Facts of one package. `port` says whether a DDTree port is possible: no, fork or extension."""

    version: str | None
    methods: list[str]
    dflash: str
    ddtree: str
    tree_attention: bool
    token_tree_option: bool
    custom_proposer: bool
    plugin_group: str | None
    proposers: list[str]
    hybrid_tree_state: bool
    port: str
    reasons: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_vllm(tree: SourceTree, version: str | None = None) -> VllmSource:
    config = source.module(tree, "config/speculative.py")
    methods = speculative_methods(config)
    names = [*tree.names("v1/spec_decode/*.py"), *tree.names("v1/worker/gpu/spec_decode/*.py")]
    tree_attention = tree.text("v1/attention/backends/tree_attn.py") is not None
    token_tree = _has_field(config, "speculative_token_tree")
    custom = "custom_class" in methods
    dflash = any("dflash" in n for n in names) and "dflash" in methods
    ddtree = next((n for n in names if "ddtree" in n.lower()), "")
    state = _tree_state(tree)
    port, reasons = _judge(dflash, tree_attention, token_tree, custom, state, bool(ddtree))
    return VllmSource(
        version=version or read_version(tree),
        methods=methods,
        dflash="tree" if ddtree else "linear" if dflash else "none",
        ddtree="native" if ddtree else "none",
        tree_attention=tree_attention,
        token_tree_option=token_tree,
        custom_proposer=custom,
        plugin_group=_plugin_group(tree),
        proposers=_proposers(tree, names),
        hybrid_tree_state=state,
        port=port,
        reasons=reasons,
    )


def speculative_methods(body: ast.Module | None) -> list[str]:
    """The names that `SpeculativeMethod` allows, nested aliases followed."""
    aliases: dict[str, ast.expr] = {}
    for node in body.body if body else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            aliases[node.targets[0].id] = node.value

    def names(node: ast.AST, depth: int = 0) -> list[str]:
        found: list[str] = []
        for child in ast.walk(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                found.append(child.value)
            elif isinstance(child, ast.Name) and child.id in aliases and child.id != "Literal" and depth < 5:
                found += names(aliases[child.id], depth + 1)
        return found

    return sorted(set(names(aliases["SpeculativeMethod"]))) if "SpeculativeMethod" in aliases else []


def _has_field(body: ast.Module | None, name: str) -> bool:
    nodes = ast.walk(body) if body else ()
    return any(isinstance(n, ast.AnnAssign) and source.called_name(n.target) == name for n in nodes)


def _plugin_group(tree: SourceTree) -> str | None:
    body = source.module(tree, "plugins/__init__.py")
    for node in body.body if body else ():
        if isinstance(node, ast.Assign) and source.called_name(node.targets[0]) == "DEFAULT_PLUGINS_GROUP":
            return str(source.literal(node.value))
    return None


def _proposers(tree: SourceTree, paths: list[str]) -> list[str]:
    found = set()
    for path in paths:
        body = source.module(tree, path)
        for node in ast.walk(body) if body else ():
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Proposer", "Speculator")):
                found.add(node.name)
    return sorted(found)


def _tree_state(tree: SourceTree) -> bool:
    """The recurrent layers' metadata knows parents of draft tokens (it needs them to verify a tree)."""
    body = source.module(tree, "v1/attention/backends/gdn_attn.py")
    words = ("parent", "token_tree", "ancestor")
    names = (getattr(n, "id", getattr(n, "attr", getattr(n, "arg", ""))) or "" for n in ast.walk(body)) if body else ()
    return any(word in str(name) for name in names for word in words)


def _judge(
    dflash: bool, tree_attention: bool, token_tree: bool, custom: bool, state: bool, native: bool
) -> tuple[str, list[str]]:
    if native:
        return "native", ["upstream names DDTree itself"]
    reasons = []
    reasons.append("drafts with DFlash" if dflash else "has no DFlash drafter to take marginals from")
    if tree_attention:
        reasons.append(
            "has a tree attention backend" + (" for static trees (speculative_token_tree)" if token_tree else "")
        )
    else:
        reasons.append("has no tree attention backend (removed upstream): verification is a chain")
    if custom:
        reasons.append("takes a custom proposer class, which drafts but can't change how drafts are verified")
    if not state:
        reasons.append("keeps recurrent states by token order, without parents: a hybrid model can't verify branches")
    if not dflash:
        return "no", reasons
    reasons.append(
        "a per-round tree needs the scheduler's, the sampler's and the attention metadata's code changed: a fork, no plug-in"
    )
    return "fork", reasons
