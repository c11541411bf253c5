"""The keys that work where the keyboard is, read from the bindings themselves, and what the signs mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.screen import Screen

from orchestrator.tui.actions import ACTIONS
from orchestrator.tui.words import SIGNS, STATE_WORDS

if TYPE_CHECKING:
    from orchestrator.tui.operate import Operator

Group = tuple[str, Sequence[tuple[str, str]]]
_NAMES = {"less_than_sign": "<", "greater_than_sign": ">", "slash": "/", "question_mark": "?", "colon": ":"}
_TITLES = {
    "TaskTree": "Tree of tasks", "LogView": "Log", "BlockView": "Page", "Rows": "Table", "Reader": "Document",
    "RunView": "Run view", "HostView": "Host view", "BenchView": "Bench view", "RoadmapView": "Roadmap view",
    "HistoryView": "History view", "TodoView": "To-do view", "OrchestrateApp": "Everywhere",
}  # fmt: skip
_HIDDEN = ("act(", "app.focus", "screen.", "page_left", "page_right")


def help_groups(screen: Screen[object], operator: Operator) -> list[Group]:
    groups: dict[str, dict[str, list[str]]] = {}
    for active in screen.active_bindings.values():
        title = _TITLES.get(type(active.node).__name__)
        binding = active.binding
        if title is None or not binding.description or binding.action.startswith(_HIDDEN):
            continue
        keys = groups.setdefault(title, {}).setdefault(binding.description, [])
        key = binding.key_display or _NAMES.get(binding.key, binding.key)
        if key not in keys:
            keys.append(key)
    possible = {name for name, _, _ in operator.available()}
    actions = [(key, title + ("" if name in possible else "  (not now)")) for name, (key, title, _) in ACTIONS.items()]
    signs = [(sign, STATE_WORDS[state]) for state, (sign, _) in SIGNS.items()]
    return [
        *((title, [(" ".join(keys), what) for what, keys in found.items()]) for title, found in groups.items()),
        ("Actions; each asks first", actions),
        (
            "Moving between parts",
            [("tab shift+tab", "next and previous part"), ("mouse", "click, double click, wheel")],
        ),
        ("Signs of tasks", [*signs, ("H M L", "high, medium, low priority")]),
    ]
