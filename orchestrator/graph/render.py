"""A graph as a picture in text: dot for Graphviz, or Mermaid."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.errors import UsageError
from orchestrator.graph.model import GraphSpec

# By a task's state, or by what a plan would do with it.
_COLOURS = {
    "completed": "#b7e1cd", "reuse": "#b7e1cd", "confirm": "#b7e1cd",
    "failed": "#f4c7c3",
    "in_progress": "#fce8b2", "run": "#fce8b2",
    "unknown": "#e8d3f5",
    "rolled_back": "#f9cb9c",
    "skipped": "#e0e0e0", "cancelled": "#e0e0e0",
}  # fmt: skip
Words = Mapping[str, str]


def render(graph: GraphSpec, form: str, words: Words | None = None) -> str:
    """The graph in `form` (dot or mermaid); `words` gives tasks a state or planned action, shown and coloured."""
    forms: dict[str, Callable[[GraphSpec, Words], str]] = {"dot": _dot, "mermaid": _mermaid}
    if form not in forms:
        raise UsageError(f"format {form!r}: choose {', '.join(forms)}")
    return forms[form](graph, words or {})


def _dot(graph: GraphSpec, words: Words) -> str:
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=LR;", "  node [shape=box, style=filled, fillcolor=white];"]
    for spec in graph.tasks:
        word = words.get(spec.key, "")
        label = f"{_titled(spec.key, word)}\\n{_escaped(spec.content)}"
        colour = _COLOURS.get(word, "white")
        lines.append(f'  {_quoted(spec.key)} [label="{label}", fillcolor={_quoted(colour)}];')
        lines += [f"  {_quoted(key)} -> {_quoted(spec.key)};" for key in spec.depends_on]
    return "\n".join([*lines, "}", ""])


def _mermaid(graph: GraphSpec, words: Words) -> str:
    names = {spec.key: f"t{index}" for index, spec in enumerate(graph.tasks)}
    lines = ["flowchart LR"]
    for spec in graph.tasks:
        word = words.get(spec.key, "")
        text = spec.content.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\n", " ")
        lines.append(f'  {names[spec.key]}["{_titled(spec.key, word)}: {text}"]')
        lines += [f"  {names[key]} --> {names[spec.key]}" for key in spec.depends_on]
        if word in _COLOURS:
            lines.append(f"  style {names[spec.key]} fill:{_COLOURS[word]}")
    return "\n".join([*lines, ""])


def _titled(key: str, word: str) -> str:
    return f"{key} ({word})" if word else key


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
