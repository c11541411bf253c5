"""Regenerate what is generated in docs/: the picture of the real imports in architecture.md. `--check` only compares."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import grimp

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
START, END = "<!-- imports: made by `make docs` -->", "<!-- end of imports -->"


def house(module: str) -> str:
    """The box that a module belongs to: a package of orchestrator, or tasks as a whole."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "orchestrator" and len(parts) > 1 else parts[0]


def edges() -> Counter[tuple[str, str]]:
    """Imports between boxes, counted by module."""
    graph = grimp.build_graph("orchestrator", "tasks")
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = house(module), house(imported)
            if pair[0] != pair[1]:
                found[pair] += 1
    return found


def picture() -> str:
    lines = ["```mermaid", "graph LR"]
    for (source, target), count in sorted(edges().items()):
        lines.append(f"  {source} -->|{count}| {target}")
    return "\n".join([*lines, "```"])


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(START) + len(START), text.index(END)
    wanted = f"{text[:start]}\n{picture()}\n{text[end:]}"
    if wanted == text:
        print("docs/architecture.md is up to date")
        return 0
    if "--check" in arguments:
        print("docs/architecture.md does not show the real imports; run `make docs`")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    print("docs/architecture.md redrawn")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
