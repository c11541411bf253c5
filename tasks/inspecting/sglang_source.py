"""What an SGLang package can do, read from its source: algorithms, DFlash, plug-ins, gates that trees must pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tasks.inspecting import source
from tasks.inspecting.attention import AttentionFacts, read_attention
from tasks.inspecting.sglang_options import Option, read_options
from tasks.inspecting.source import SourceTree

SPEC_INFO = "srt/speculative/spec_info.py"
DFLASH_INFO = "srt/speculative/dflash_info.py"
PLUGINS = "srt/plugins/__init__.py"
# Everything the readers look at; what a host is asked for.
FILES = (
    "version.py",
    "_version.py",
    "__init__.py",
    "srt/server_args.py",
    "srt/arg_groups/speculative_hook.py",
    "srt/mem_cache/memory_pool.py",
    "srt/mem_cache/allocation_sizing.py",
)
GLOBS = (
    "srt/arg_groups/fields/*.py",
    "srt/speculative/*.py",
    "srt/plugins/*.py",
    "srt/layers/attention/attention_registry.py",
    "srt/layers/attention/*_backend.py",
)
TREE_FIELDS = frozenset({"retrieve_next_token", "retrieve_next_sibling", "retrieve_index", "retrive_index"})


@dataclass(frozen=True)
class Dflash:
    """DFlash as the code has it: none, linear or tree; and the code that says so."""

    kind: str
    worker: str = ""
    overlap: bool = False
    forces_topk_one: bool = False
    evidence: str = ""


@dataclass(frozen=True)
class SglangSource:
    """Facts of one package; every field is empty when its anchor is missing, and `notes` says which."""

    version: str | None
    algorithms: list[str]
    dflash: Dflash
    ddtree_native: str | None
    plugin_group: str | None
    registers_algorithms: bool
    missing_custom_methods: list[str]
    gates: list[str]
    attention: AttentionFacts
    options: dict[str, Option]
    hybrid_tree_verify: bool
    notes: list[str] = field(default_factory=list)

    @property
    def ddtree(self) -> str:
        return "native" if self.ddtree_native else "none"

    @property
    def plugin_possible(self) -> bool:
        """An out-of-tree algorithm can register and be chosen by name."""
        return self.plugin_group is not None and self.registers_algorithms and self.dflash.kind != "none"

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "algorithms": self.algorithms,
            "dflash": self.dflash.kind,
            "dflash_worker": self.dflash.worker,
            "dflash_overlap": self.dflash.overlap,
            "dflash_evidence": self.dflash.evidence,
            "ddtree": self.ddtree,
            "ddtree_evidence": self.ddtree_native,
            "plugin_group": self.plugin_group,
            "registers_algorithms": self.registers_algorithms,
            "plugin_possible": self.plugin_possible,
            "missing_custom_methods": self.missing_custom_methods,
            "gates": self.gates,
            "hybrid_tree_verify": self.hybrid_tree_verify,
            "attention": self.attention.to_json(),
            "option_count": len(self.options),
            "notes": self.notes,
        }


def read_sglang(tree: SourceTree, version: str | None = None) -> SglangSource:
    """Facts of the package at `tree` (the folder that holds `srt/`)."""
    spec_info = source.module(tree, SPEC_INFO)
    notes = [] if spec_info else [f"{SPEC_INFO} is missing: this is no sglang that inspect knows"]
    algorithms = enum_members(source.find_class(spec_info, "SpeculativeAlgorithm"))
    options = read_options(tree)
    if not options:
        notes.append("no command-line options found: the source keeps them in an unknown shape")
    attention = read_attention(tree)
    if not attention.backends:
        notes.append("no attention registry found: tree backends are unknown")
    return SglangSource(
        version=version or read_version(tree),
        algorithms=[a for a in algorithms if a != "NONE"] + _aliases(tree),
        dflash=read_dflash(tree, algorithms, options),
        ddtree_native=native_ddtree(tree, algorithms, options),
        plugin_group=plugin_group(tree),
        registers_algorithms=source.find_function(source.find_class(spec_info, "SpeculativeAlgorithm"), "register")
        is not None,
        missing_custom_methods=missing_custom_methods(tree),
        gates=topk_gates(tree, options),
        attention=attention,
        options=options,
        hybrid_tree_verify=reads_parents(tree),
        notes=notes,
    )


def read_version(tree: SourceTree) -> str | None:
    for path in ("_version.py", "version.py", "__init__.py"):
        match = re.search(r"^__version__.*?=\s*['\"]([\w.+!-]+)['\"]", tree.text(path) or "", re.M)
        if match and not match[1].startswith("0.0.0"):
            return match[1]
    return None


def enum_members(node: ast.ClassDef | None) -> list[str]:
    return [
        target.id
        for item in (node.body if node else ())
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    ]


def _aliases(tree: SourceTree) -> list[str]:
    """NEXTN is a spelling of EAGLE that some handler rewrites."""
    paths = ["srt/server_args.py", SPEC_INFO, "srt/arg_groups/speculative_hook.py"]
    return ["NEXTN"] if any("NEXTN" in source.strings(source.module(tree, p)) for p in paths) else []


def read_dflash(tree: SourceTree, algorithms: Iterable[str], options: dict[str, Option]) -> Dflash:
    """none without an algorithm and worker; tree when verify carries tree links or an option asks for a tree."""
    worker = next(
        (
            (path, node.name)
            for path in reversed(tree.names("srt/speculative/dflash_worker*.py"))
            for node in ast.walk(source.module(tree, path) or ast.Module([], []))
            if isinstance(node, ast.ClassDef) and node.name.startswith("DFlashWorker")
        ),
        None,
    )
    if "DFLASH" not in algorithms or worker is None:
        return Dflash("none", evidence="no DFLASH algorithm with a worker")
    verify = source.find_class(source.module(tree, DFLASH_INFO), "DFlashVerifyInput")
    fields = {
        i.target.id
        for i in (verify.body if verify else ())
        if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)
    }
    tree_options = sorted(n for n in options if "dflash" in n and re.search(r"tree|topk|branch", n))
    forces = _forces_topk_one(tree)
    if fields & TREE_FIELDS or (tree_options and not forces):
        said_by = ", ".join(sorted(fields & TREE_FIELDS) or tree_options)
        return Dflash("tree", worker[1], "V2" in worker[1], forces, f"{DFLASH_INFO}: {said_by}")
    evidence = f"{worker[0]}: {worker[1]}; DFlashVerifyInput has no tree links"
    if forces:
        evidence += "; its argument handler forces speculative_eagle_topk to 1"
    return Dflash("linear", worker[1], "V2" in worker[1], forces, evidence)


def _forces_topk_one(tree: SourceTree) -> bool:
    """The DFLASH argument handler (a function, or a branch of server_args) sets speculative_eagle_topk to 1."""
    for path in ("srt/arg_groups/speculative_hook.py", "srt/server_args.py"):
        body = source.module(tree, path)
        for node in ast.walk(body) if body else ():
            is_handler = isinstance(node, ast.FunctionDef) and node.name == "_handle_dflash"
            is_branch = isinstance(node, ast.If) and "'DFLASH'" in ast.unparse(node.test)
            if (is_handler or is_branch) and re.search(r"speculative_eagle_topk\s*=\s*1\b", ast.unparse(node)):
                return True
    return False


def native_ddtree(tree: SourceTree, algorithms: Iterable[str], options: dict[str, Option]) -> str | None:
    """Where upstream itself names DDTree in code (not in comments); None while it does not."""
    named = [a for a in algorithms if "DDTREE" in a or "DFLASH_TREE" in a]
    named += [n for n in options if "ddtree" in n.replace("-", "")]
    if named:
        return ", ".join(sorted(named))
    for path in tree.names("srt/speculative/*.py"):
        if "ddtree" not in (tree.text(path) or "").lower().replace("_", ""):
            continue
        body = source.module(tree, path)
        for node in ast.walk(body) if body else ():
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and "ddtree" in node.name.lower().replace("_", ""):
                return f"{path}: {node.name}"
    return None


def plugin_group(tree: SourceTree) -> str | None:
    """The entry-point group that the package loads general plug-ins from."""
    body = source.module(tree, PLUGINS)
    for node in body.body if body else ():
        if isinstance(node, ast.Assign) and source.called_name(node.targets[0]) == "GENERAL_PLUGINS_GROUP":
            value = source.literal(node.value)
            return value if isinstance(value, str) else None
    return None


def missing_custom_methods(tree: SourceTree) -> list[str]:
    """Public methods of the built-in algorithms that the class for registered ones lacks: a plug-in defines them."""
    builtin = source.find_class(source.module(tree, SPEC_INFO), "SpeculativeAlgorithm")
    custom = source.find_class(source.module(tree, "srt/speculative/spec_registry.py"), "CustomSpecAlgo")
    if builtin is None or custom is None:
        return []
    ours, theirs = ({n.name for n in c.body if isinstance(n, ast.FunctionDef)} for c in (custom, builtin))
    return sorted(n for n in theirs - ours if not n.startswith("_") and n not in ("from_string", "register"))


def topk_gates(tree: SourceTree, options: dict[str, Option]) -> list[str]:
    """Places that choose a chain-only path by `speculative_eagle_topk`: silently wrong for a tree that leaves it 1."""
    gates = []
    dedup = source.find_function(source.module(tree, "srt/mem_cache/memory_pool.py"), "conv_window_dedup_enabled")
    if dedup is not None and "speculative_eagle_topk" in source.parameters(dedup):
        gates.append("conv-window dedup (mem_cache/memory_pool.py:conv_window_dedup_enabled)")
    replay = ("--enable-linear-replayssm-spec", "--enable-gdn-replayssm-spec")
    gates += [f"{name} (strictly causal verify)" for name in replay if name in options]
    hybrid = source.module(tree, "srt/layers/attention/hybrid_linear_attn_backend.py")
    if hybrid is not None and any(
        isinstance(n, ast.Compare) and isinstance(n.left, ast.Attribute) and n.left.attr == "topk"
        for n in ast.walk(hybrid)
    ):
        gates.append("hybrid metadata (layers/attention/hybrid_linear_attn_backend.py: self.topk > 1)")
    return gates


def reads_parents(tree: SourceTree) -> bool:
    """The GDN backend can verify a tree with per-node states (reads parents of nodes)."""
    body = source.module(tree, "srt/layers/attention/linear/gdn_backend.py")
    return body is not None and any(
        getattr(n, "attr", getattr(n, "id", getattr(n, "arg", ""))) == "retrieve_parent_token" for n in ast.walk(body)
    )
