"""What a task's result depends on, as one hash, and what changed between two of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.store.jsontext import canonical


@dataclass(frozen=True)
class Basis:
    """The inputs of a task and, for every dependency, a hash of the part of its output that counts."""

    inputs: Mapping[str, Any]
    results: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {"inputs": dict(self.inputs), "results": dict(self.results)}

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> Basis:
        data = data or {}
        return Basis(data.get("inputs", {}), data.get("results", {}))


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
    """What changed, inputs first, then the results of dependencies, each by name."""
    changes = [
        InputChange(name, old.inputs.get(name), new.inputs.get(name))
        for name in sorted({*old.inputs, *new.inputs})
        if old.inputs.get(name) != new.inputs.get(name)
    ]
    changes += [
        InputChange(f"result of {name}", old.results.get(name), new.results.get(name))
        for name in sorted({*old.results, *new.results})
        if old.results.get(name) != new.results.get(name)
    ]
    return changes


def short(value: Any) -> str:
    """A value in at most 60 characters."""
    text = "nothing" if value is None else canonical(value)
    return text if len(text) <= 60 else text[:57] + "..."
