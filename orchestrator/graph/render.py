"""A graph as dot, Mermaid, JSON or a plain table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from orchestrator.errors import UsageError
from orchestrator.graph.model import GraphSpec, State

_COLOURS = {
    State.COMPLETED: "#b7e1cd",
    State.FAILED: "#f4c7c3",
    State.IN_PROGRESS: "#fce8b2",
    State.UNKNOWN: "#e8d3f5",
    State.ROLLED_BACK: "#f9cb9c",
    State.SKIPPED: "#e0e0e0",
    State.CANCELLED: "#e0e0e0",
}
States = Mapping[str, State]


def render(graph: GraphSpec, form: str, states: States | None = None) -> str:
    """The graph in `form` (dot, mermaid, json, table), coloured or marked with the tasks' states if given."""
    forms: dict[str, Callable[[GraphSpec, States], str]] = {
        "dot": _dot, "mermaid": _mermaid, "json": _json, "table": _table,
    }  # fmt: skip
    if form not in forms:
        raise UsageError(f"format {form!r}: choose {', '.join(forms)}")
    return forms[form](graph, states or {})


def _dot(graph: GraphSpec, states: States) -> str:
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=LR;", "  node [shape=box, style=filled, fillcolor=white];"]
    for spec in graph.tasks:
        colour = _COLOURS.get(states.get(spec.key, State.PENDING), "white")
        label = f"{spec.key}\\n{_escaped(spec.content)}"
        lines.append(f'  {_quoted(spec.key)} [label="{label}", fillcolor={_quoted(colour)}];')
        lines += [f"  {_quoted(key)} -> {_quoted(spec.key)};" for key in spec.depends_on]
    return "\n".join([*lines, "}", ""])


def _mermaid(graph: GraphSpec, states: States) -> str:
    names = {spec.key: f"t{index}" for index, spec in enumerate(graph.tasks)}
    lines = ["flowchart LR"]
    for spec in graph.tasks:
        text = spec.content.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\n", " ")
        lines.append(f'  {names[spec.key]}["{spec.key}: {text}"]')
        lines += [f"  {names[key]} --> {names[spec.key]}" for key in spec.depends_on]
        colour = _COLOURS.get(states.get(spec.key, State.PENDING))
        if colour:
            lines.append(f"  style {names[spec.key]} fill:{colour}")
    return "\n".join([*lines, ""])


def _json(graph: GraphSpec, states: States) -> str:
    tasks = [
        {
            "key": spec.key, "content": spec.content, "phase": spec.phase, "priority": str(spec.priority),
            "depends_on": list(spec.depends_on), "changes_host": spec.changes_host,
            "state": str(states.get(spec.key, State.PENDING)),
        }
        for spec in graph.tasks
    ]  # fmt: skip
    return json.dumps({"graph": graph.name, "summary": graph.summary, "tasks": tasks}, indent=2) + "\n"


def _table(graph: GraphSpec, states: States) -> str:
    rows = [("task", "priority", "state", "after", "content")]
    for spec in graph.tasks:
        state = str(states.get(spec.key, State.PENDING))
        after = ", ".join(spec.depends_on) or "-"
        rows.append((spec.key, str(spec.priority), state, after, " ".join(spec.content.split())))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
