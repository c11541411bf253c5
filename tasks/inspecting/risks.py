"""The rule base: what can go wrong on this host with these models, with evidence, consequence and what to do.

Every rule is a function of the inspection document; it gives the evidence when it applies and None when not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

Document = Mapping[str, Any]
Check = Callable[[Document], str | None]
GIB = 1 << 30


@dataclass(frozen=True)
class Risk:
    """One risk that applies. severity: blocker (DDTree can't run), high, medium or low."""

    id: str
    severity: str
    evidence: str
    consequence: str
    what_to_do: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Rule:
    id: str
    severity: str
    check: Check
    consequence: str
    what_to_do: str


RULES: list[Rule] = []
ORDER = {"blocker": 0, "high": 1, "medium": 2, "low": 3}


def rule(id: str, severity: str, *, consequence: str, what_to_do: str) -> Callable[[Check], Check]:
    """Register a check under an id; ids are stable, reports and notes refer to them."""

    def register(check: Check) -> Check:
        RULES.append(Rule(id, severity, check, consequence, what_to_do))
        return check

    return register


def rules() -> list[Rule]:
    """The whole rule base, in its order."""
    importlib.import_module("tasks.inspecting.risk_rules")  # fills RULES
    return RULES


def map_risks(document: Document) -> list[Risk]:
    """Every risk that applies, blockers first, then in the order of the rule base."""
    found = [
        Risk(r.id, r.severity, evidence, r.consequence, r.what_to_do)
        for r in rules()
        if (evidence := r.check(document)) is not None
    ]
    return sorted(found, key=lambda risk: ORDER[risk.severity])


def option(document: Document, name: str) -> Any:
    """The value in force of a launch option of the service, by field name; None when it is not set."""
    return part(document, "sglang", "service", "options", name)


def hybrid(document: Document) -> bool:
    return str(part(document, "model", "target", "kind") or "").startswith("hybrid")


def part(document: Document, *keys: str) -> Any:
    """document[k1][k2]…, or None as soon as one is missing."""
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
