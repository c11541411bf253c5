"""What the acceptance oracle measured for this very pair: a baseline counts only for the same bytes of weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).resolve().parents[2] / "engine" / "baselines" / "data"
FORMAT = "ddtree-baseline"


@dataclass(frozen=True)
class Measured:
    """`gain`: relative gain in tokens per step over the chain, by node budget as text; `on` says on what."""

    gain: dict[str, float]
    on: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measured_for(target_sha256: str | None, draft_sha256: str | None, folder: Path = BASELINES) -> Measured | None:
    """The baseline of this pair, if one lies in the folder; an unreadable file counts as none."""
    if not (target_sha256 and draft_sha256):
        return None
    for path in sorted(folder.glob("*.json")):
        baseline = _load(path)
        if (_sha(baseline, "target"), _sha(baseline, "draft")) == (target_sha256, draft_sha256):
            return _gain(baseline, path.stem)
    return None


def gain_at(gains: Mapping[str, float], nodes: int) -> float | None:
    """The gain measured for the widest budget that is not wider; a wider tree holds that one, so it gains no less."""
    budgets = [int(budget) for budget in gains if int(budget) <= nodes]
    return float(gains[str(max(budgets))]) if budgets else None


@cache
def _load(path: Path) -> Mapping[str, Any]:
    try:
        baseline = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return baseline if isinstance(baseline, dict) and baseline.get("format") == FORMAT else {}


def _sha(baseline: Mapping[str, Any], role: str) -> str | None:
    return (baseline.get(role) or {}).get("sha256")


def _gain(baseline: Mapping[str, Any], name: str) -> Measured | None:
    """From prompts that do not loop where there are any: repetition flatters every kind of speculation."""
    summary = baseline.get("summary") or {}
    honest = summary.get("non_repetitive") or {}
    group, kind = (honest, " that do not loop") if honest.get("prompts") else (summary.get("all") or {}, "")
    rates = group.get("tokens_per_step") or {}
    chain = rates.get("chain")
    if not chain:
        return None
    gain = {budget: round(rate / chain - 1.0, 4) for budget, rate in rates.items() if budget.isdigit()}
    return Measured(gain, f"{group['prompts']} prompts{kind}, oracle baseline {name}")
