"""What a task's result depends on, as one hash, and what changed between two of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.store.jsontext import canonical


@dataclass(frozen=True)
class Basis:
    """The inputs of a task and, for every dependency, a hash of the part of its output that counts.

    `fields` holds that part too, shortened, so that people see which value changed; the fingerprint leaves it out.
    """

    inputs: Mapping[str, Any]
    results: Mapping[str, str]
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        return digest({"inputs": dict(self.inputs), "results": dict(self.results)})

    def to_json(self) -> dict[str, Any]:
        return {"inputs": dict(self.inputs), "results": dict(self.results), "fields": dict(self.fields)}

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> Basis:
        data = data or {}
        return Basis(data.get("inputs", {}), data.get("results", {}), data.get("fields", {}))


def digest(value: Any) -> str:
    """A short hash of any JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class InputChange:
    """An input whose value differs; None stands for "was not there"."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {short(self.old)} -> {short(self.new)}"


def differences(old: Basis, new: Basis) -> list[InputChange]:
    """What changed, inputs first, then the results of dependencies field by field, each by name."""
    changes = _changed(old.inputs, new.inputs, "")
    for change in _changed(old.results, new.results, ""):
        before, now = old.fields.get(change.name, {}), new.fields.get(change.name, {})
        known = _changed(before, now, f"result of {change.name}: ") if before and now else []
        changes += known or [InputChange(f"result of {change.name}", change.old, change.new)]
    return changes


def brief(value: Any) -> Any:
    """`value` itself if it is short, else its beginning and a hash that tells it from others."""
    text = canonical(value)
    return value if len(text) <= 60 else f"{text[:40]}... ({digest(value)[:8]})"


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> list[InputChange]:
    return [
        InputChange(f"{prefix}{name}", old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def short(value: Any) -> str:
    """A value in at most 60 characters."""
    text = "nothing" if value is None else canonical(value)
    return text if len(text) <= 60 else text[:57] + "..."
