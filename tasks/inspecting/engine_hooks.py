"""Whether a package still has the upstream functions that the DDTree plug-in relies on; nothing is imported.

The list is the plug-in's own (engine/sglang_ddtree/hooks.py and compat/): read as data by AST, since importing it
needs torch and sglang.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tasks.inspecting import source
from tasks.inspecting.flags import version_key
from tasks.inspecting.source import SourceTree

ENGINE = Path(__file__).resolve().parents[2] / "engine" / "sglang_ddtree"


@dataclass(frozen=True)
class Hook:
    """An upstream function: `module:qualified.name`, how it is used, and the parameters that must keep their names."""

    target: str
    kind: str
    parameters: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class HookState:
    """present, changed (a parameter is gone), missing, or unseen (inherited from a module that was not read)."""

    target: str
    kind: str
    state: str
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@cache
def hooks(engine: Path = ENGINE) -> tuple[Hook, ...]:
    """The plug-in's hook table; () when the engine's source is not beside this program."""
    return _table(engine, "HOOKS")


@cache
def gpu_hooks(engine: Path = ENGINE) -> tuple[Hook, ...]:
    """What the plug-in touches besides, on the lines whose worker runs on GPUs."""
    return _table(engine, "GPU_HOOKS")


@cache
def gpu_lines(engine: Path = ENGINE) -> tuple[str, ...]:
    """The SGLang lines on which the plug-in's GPU worker runs."""
    value = _constants(engine).get("GPU_LINES")
    found = source.literal(value) if value is not None else None
    return tuple(str(line) for line in found) if isinstance(found, tuple) else ()


def _constants(engine: Path) -> dict[str, ast.expr]:
    body = _module(engine / "hooks.py")
    return {
        node.targets[0].id: node.value
        for node in (body.body if body else ())
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _table(engine: Path, name: str) -> tuple[Hook, ...]:
    constants = _constants(engine)
    names = {key: text for key, node in constants.items() if isinstance(text := source.literal(node), str)}
    rows = constants.get(name)
    items = rows.elts if isinstance(rows, ast.Tuple) else []
    return tuple(_hook(item, names) for item in items if isinstance(item, ast.Call))


@cache
def supported_lines(engine: Path = ENGINE) -> dict[str, dict[str, tuple[str, ...] | None]]:
    """{version: parameters that differ there} of every SGLang line that the plug-in was written for."""
    body = _module(engine / "compat" / "__init__.py")
    lines: dict[str, dict[str, tuple[str, ...] | None]] = {}
    for node in body.body if body else ():
        if isinstance(node, ast.Assign) and source.called_name(node.targets[0]) == "LINES":
            table = source.literal(node.value)
            if isinstance(table, dict):
                lines = {str(v): _line_parameters(engine / "compat" / f"{m}.py") for v, m in table.items()}
    return lines


def check_hooks(tree: SourceTree, version: str | None, table: Iterable[Hook] | None = None) -> list[HookState]:
    """The state of every hook in a package; parameters as the nearest supported line expects them."""
    line = _nearest_line(version)
    differing = supported_lines().get(line, {}) if line else {}
    if table is None:
        table = hooks() + gpu_hooks() if line in gpu_lines() else hooks()
    states = []
    for hook in table:
        expected = differing.get(hook.target, hook.parameters)
        if expected is not None:
            states.append(_state(tree, hook, expected))
    return states


def source_files(table: Iterable[Hook] | None = None) -> list[str]:
    """Paths below the package of every module that a hook lives in."""
    paths = {_path(hook.target) for hook in (hooks() + gpu_hooks() if table is None else table)}
    return sorted(paths | {_as_package(path) for path in paths})


def _state(tree: SourceTree, hook: Hook, expected: tuple[str, ...]) -> HookState:
    path = _path(hook.target)
    if tree.text(path) is None and tree.text(_as_package(path)) is not None:
        path = _as_package(path)
    body = source.module(tree, path)
    if body is None:
        return HookState(hook.target, hook.kind, "missing", f"{path} is not there")
    found = _find(body, hook.target.partition(":")[2].split("."))
    if isinstance(found, tuple):  # the module re-exports it: look where it is defined
        where, name = found
        found = (
            _find(source.module(tree, where) or ast.Module([], []), [name])
            if tree.text(where) is not None
            else "inherited"
        )
    if found is None:
        return HookState(hook.target, hook.kind, "missing", f"{path} has no {hook.target.partition(':')[2]}")
    if found == "inherited" or isinstance(found, tuple):
        return HookState(hook.target, hook.kind, "unseen", "inherited from another module")
    if isinstance(found, ast.ClassDef):
        return HookState(hook.target, hook.kind, "present")
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    have = [name.lstrip("*") for name in source.parameters(found)]
    gone = [name for name in expected if name not in have]
    if gone:
        return HookState(hook.target, hook.kind, "changed", f"no parameter {', '.join(gone)} any more")
    return HookState(hook.target, hook.kind, "present")


def _find(body: ast.Module, names: list[str]) -> ast.AST | tuple[str, str] | str | None:
    """The definition; (path, name) when it is imported; "inherited" when another module may have it (a base, `import *`)."""
    if len(names) == 1:
        return source.find_function(body, names[0]) or source.find_class(body, names[0]) or _imported(body, names[0])
    node = source.find_class(body, names[0])
    seen = set()
    while node is not None and node.name not in seen:
        seen.add(node.name)
        method = source.find_function(node, names[1])
        if method is not None:
            return method
        bases = [source.called_name(base) for base in node.bases]
        local = [found for base in bases if (found := source.find_class(body, base)) is not None]
        if not local:
            return "inherited" if bases else None
        node = local[0]
    return None


def _imported(body: ast.Module, name: str) -> tuple[str, str] | str | None:
    everything = None
    for node in ast.walk(body):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _path(node.module), alias.name
                if alias.name == "*":
                    everything = "inherited"
    return everything


def _path(target: str) -> str:
    return target.partition(":")[0].removeprefix("sglang.").replace(".", "/") + ".py"


def _as_package(path: str) -> str:
    return path.removesuffix(".py") + "/__init__.py"


def _nearest_line(version: str | None) -> str | None:
    """The newest supported line that is not newer than the version, else the oldest one."""
    order = sorted(supported_lines(), key=version_key)
    if not order or version is None:
        return None
    not_newer = [line for line in order if version_key(line) <= version_key(version)]
    return not_newer[-1] if not_newer else order[0]


def _line_parameters(path: Path) -> dict[str, tuple[str, ...] | None]:
    body = _module(path)
    for node in ast.walk(body) if body else ():
        if isinstance(node, ast.AnnAssign) and source.called_name(node.target) == "hook_parameters":
            value = source.literal(node.value)
            return value if isinstance(value, dict) else {}
    return {}


def _hook(call: ast.Call, names: Mapping[str, str]) -> Hook:
    values = [_text(a, names) for a in call.args]
    return Hook(str(values[0]), str(values[1]), tuple(values[2]), str(values[3]))


def _text(node: ast.expr, names: Mapping[str, str]) -> Any:
    """A literal, with f-strings of known names filled in."""
    if isinstance(node, ast.JoinedStr):
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
                parts.append(names[part.value.id])
            else:
                parts.append(str(source.literal(part)))
        return "".join(parts)
    return source.literal(node)


def _module(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text())
    except (OSError, SyntaxError):
        return None
