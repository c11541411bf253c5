"""The text of a package as it lies on a host or in a folder; everything is read, nothing is imported or run."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Protocol

MAX_SOURCE_BYTES = 4 << 20


class SourceTree(Protocol):
    """Files below one folder, by path relative to it."""

    @property
    def root(self) -> str: ...
    def text(self, path: str) -> str | None:
        """Content of a file, or None if there is none (or it could not be read)."""
        ...

    def names(self, pattern: str) -> list[str]:
        """Paths that match a shell pattern (`*` also matches `/`), sorted."""
        ...


@dataclass(frozen=True)
class FolderTree:
    """A folder on this machine."""

    path: Path

    @property
    def root(self) -> str:
        return str(self.path)

    def text(self, path: str) -> str | None:
        file = self.path / path
        try:
            if file.stat().st_size > MAX_SOURCE_BYTES:
                return None
            return file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def names(self, pattern: str) -> list[str]:
        start = self.path / pattern.split("*", 1)[0].rpartition("/")[0]
        found = (str(p.relative_to(self.path)) for p in start.rglob("*") if p.is_file())
        return sorted(name for name in found if fnmatch.fnmatch(name, pattern))


@dataclass(frozen=True)
class BundleTree:
    """Files that were copied from a host."""

    root: str
    files: Mapping[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, pattern: str) -> list[str]:
        return sorted(name for name in self.files if fnmatch.fnmatch(name, pattern))


@lru_cache(maxsize=512)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def module(tree: SourceTree, path: str) -> ast.Module | None:
    """The parsed file, or None if it is missing or not valid Python."""
    text = tree.text(path)
    return None if text is None else _parse(text)


def find_class(body: ast.Module | None, name: str) -> ast.ClassDef | None:
    nodes: Iterable[ast.AST] = ast.walk(body) if body else ()
    return next((n for n in nodes if isinstance(n, ast.ClassDef) and n.name == name), None)


def find_function(body: ast.Module | ast.ClassDef | None, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """A function or method defined directly in a module or class."""
    for node in body.body if body else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    return None


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of all parameters in order, stars included."""
    spec = function.args
    names = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    if spec.vararg:
        names.append("*" + spec.vararg.arg)
    names += [arg.arg for arg in spec.kwonlyargs]
    if spec.kwarg:
        names.append("**" + spec.kwarg.arg)
    return names


def literal(node: ast.AST | None) -> object:
    """The value of a literal expression, or None."""
    try:
        return ast.literal_eval(node) if isinstance(node, ast.expr) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {item.arg: item.value for item in call.keywords if item.arg}


def called_name(node: ast.AST) -> str:
    """`f` for f(…), `g` for a.b.g(…), '' otherwise."""
    function = node.func if isinstance(node, ast.Call) else node
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def calls(body: ast.AST | None, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(body) if body else ():
        if isinstance(node, ast.Call) and called_name(node) == name:
            yield node


def strings(body: ast.AST | None) -> Iterator[str]:
    for node in ast.walk(body) if body else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
