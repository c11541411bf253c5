"""Training text: the Python standard library's own sources and documentation, in a deterministic order.

The standard library is covered by the PSF licence (version 2); nothing of it is stored in the repository.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".py", ".rst", ".txt")
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "encodings"}
HELD_OUT_ONE_IN = 40
MAX_EXAMPLE_CHARS = 1500


@dataclass(frozen=True)
class Document:
    """A text with where it came from and whether training must not see it."""

    source: str
    text: str
    held_out: bool


def _is_prose_or_code(text: str) -> bool:
    """Tables of numbers and one-line data files teach nothing and eat the vocabulary."""
    size = len(text)
    if size < 300 or size / (text.count("\n") + 1) > 160:
        return False
    digits = sum(map(text.count, "0123456789"))
    return digits <= 0.2 * size and sum(ord(c) > 127 for c in text) <= 0.05 * size


def _library_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.suffix in SUFFIXES and not SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            yield path


def library_documents(root: Path | None = None) -> list[Document]:
    """Every readable text of the standard library, duplicates dropped, ordered by content hash."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, Document] = {}
    for path in _library_files(root):
        if path.stat().st_size > 400_000:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if not _is_prose_or_code(text):
            continue
        digest = hashlib.sha256(re.sub(r"\s+", "", text).encode()).hexdigest()
        held_out = int(digest[:8], 16) % HELD_OUT_ONE_IN == 0
        found.setdefault(digest, Document(str(path.relative_to(root)), text, held_out))
    return [found[digest] for digest in sorted(found)]


def chat(user: str, assistant: str) -> str:
    """One exchange in the pairs' own chat template."""
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{assistant}<|im_end|>\n"


def _parsed(document: Document) -> ast.Module | None:
    try:
        return ast.parse(document.text) if document.source.endswith(".py") else None
    except (SyntaxError, ValueError):
        return None


def _function_examples(document: Document, tree: ast.Module) -> Iterator[str]:
    lines = document.text.splitlines()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        doc = (ast.get_docstring(node) or "").strip()
        code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if not doc or not 80 <= len(code) <= MAX_EXAMPLE_CHARS:
            continue
        kind = "function" if isinstance(node, ast.FunctionDef) else "class"
        yield chat(f"Write a Python {kind} `{node.name}`: {doc.splitlines()[0]}", f"```python\n{code}\n```")


def _topic_examples() -> Iterator[str]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        paragraphs = [p for p in topics[name].split("\n\n") if p.strip()]
        title = paragraphs[0].strip("\n* ")
        for start in range(1, len(paragraphs), 6):
            answer = "\n\n".join(paragraphs[start : start + 6])[: 2 * MAX_EXAMPLE_CHARS]
            yield chat(f"Explain this part of Python: {title.splitlines()[0]}", answer)


def _docstring_examples(document: Document, tree: ast.Module) -> Iterator[str]:
    """Module documentation as an answer to a question about the module."""
    doc = ast.get_docstring(tree)
    if doc and len(doc) > 200:
        module = document.source.removesuffix(".py").replace("/", ".")
        yield chat(f"What does the module `{module}` do?", doc[: 2 * MAX_EXAMPLE_CHARS])


def chat_documents(documents: list[Document]) -> list[Document]:
    """Chat exchanges made of the training documents only, so that held-out text stays unseen."""
    examples = list(_topic_examples())
    for document in documents:
        tree = None if document.held_out else _parsed(document)
        if tree is not None:
            examples += _function_examples(document, tree)
            examples += _docstring_examples(document, tree)
    unique = sorted(set(examples), key=lambda text: hashlib.sha256(text.encode()).digest())
    return [Document("chat", text, False) for text in unique]


def corpus_hash(documents: list[Document]) -> str:
    """SHA-256 over every text in order: two runs with equal hashes saw equal data."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(b"H" if document.held_out else b"T")
        digest.update(document.text.encode() + b"\0")
    return digest.hexdigest()
