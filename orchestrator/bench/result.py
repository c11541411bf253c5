"""The outcome of a sweep as one document, and reading it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.bench.rows import Row, row_from_json
from orchestrator.bench.summary import ArmSummary
from orchestrator.bench.verdict import Verdict
from orchestrator.errors import UsageError


@dataclass(frozen=True)
class SweepResult:
    """Everything a sweep found. skipped: budget -> why it was given up before all its pairs were measured."""

    rows: tuple[Row, ...]
    arms: tuple[ArmSummary, ...]
    verdict: Verdict
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [row.to_json() for row in self.rows],
            "arms": [arm.to_json() for arm in self.arms],
            "verdict": self.verdict.to_json(),
            "settings": self.settings,
            "skipped": {str(budget): why for budget, why in self.skipped.items()},
        }


_ARM = TypeAdapter(ArmSummary)
_VERDICT = TypeAdapter(Verdict)


def sweep_from_json(data: Mapping[str, Any], where: str = "the document") -> SweepResult:
    """Inverse of SweepResult.to_json; UsageError says in which part `where` is not such a document."""
    try:
        return SweepResult(
            rows=tuple(row_from_json(row) for row in data["rows"]),
            arms=tuple(_ARM.validate_python(arm) for arm in data["arms"]),
            verdict=_VERDICT.validate_python(data["verdict"]),
            settings=dict(data.get("settings") or {}),
            skipped={int(budget): str(why) for budget, why in (data.get("skipped") or {}).items()},
        )
    except KeyError as exc:
        raise UsageError(f"{where} has no {exc.args[0]!r}; give a result that `bench --json` wrote.") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where} does not hold a sweep: {exc.title}.{place}: {first['msg']}.") from exc
