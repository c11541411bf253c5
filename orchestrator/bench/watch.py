"""Regression watch and comparison of two sweeps: is this engine slower, or less often right, than it was?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.bench import stats
from orchestrator.bench.result import SweepResult
from orchestrator.bench.rows import LINEAR, TREE, Row
from orchestrator.bench.summary import pairs_of

FIGURES: dict[str, tuple[str, Callable[[Row], float | None]]] = {
    "speed": ("tokens/s", lambda row: row.tok_s),
    "tokens per step": ("tokens", lambda row: row.counts.tokens_per_step),
}


@dataclass(frozen=True)
class Change:
    """One arm now against before. arm: `linear`, or `tree N`. ratio = now / before, > 1 is better.

    ci95 covers the ratio of the medians of both sets of rows. worse: that whole interval lies below 1 - margin.
    """

    arm: str
    concurrency: int
    figure: str
    unit: str
    before: float
    now: float
    ratio: float
    ci95: tuple[float, float]
    worse: bool
    n_before: int
    n_now: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(before: SweepResult, now: SweepResult, margin: float = 0.02) -> list[Change]:
    """Speed and tokens per step of every arm that both have valid rows of, and the trees' speed against linear.

    Rows of prompts that only one of the two measured are left out, so that the sets are like for like.
    """
    common = _prompts(before.rows) & _prompts(now.rows)
    groups_before, groups_now = _groups(before.rows, common), _groups(now.rows, common)
    changes = []
    for key in groups_before.keys() & groups_now.keys():
        for figure, (unit, values) in FIGURES.items():
            old = [v for r in groups_before[key] if (v := values(r))]
            new = [v for r in groups_now[key] if (v := values(r))]
            if old and new:
                changes.append(_change(key, figure, unit, old, new, margin))
    ratios_before, ratios_now = _ratios(before.rows, common), _ratios(now.rows, common)
    changes += [
        _change(key, "speed against linear", "ratio", ratios_before[key], ratios_now[key], margin)
        for key in ratios_before.keys() & ratios_now.keys()
    ]
    return sorted(changes, key=lambda c: (c.concurrency, c.arm != LINEAR, len(c.arm), c.arm, c.figure))


def regressed(changes: Sequence[Change]) -> list[Change]:
    """What got worse by more than the margin; empty = the watch is content."""
    return [c for c in changes if c.worse]


def _prompts(rows: Sequence[Row]) -> set[str]:
    return {h for r in rows if r.valid for h in r.prompt_hashes}


def _groups(rows: Sequence[Row], prompts: set[str]) -> dict[tuple[int, str], list[Row]]:
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row.valid and prompts.issuperset(row.prompt_hashes):
            name = f"{TREE} {row.budget}" if row.arm == TREE else LINEAR
            groups.setdefault((row.concurrency, name), []).append(row)
    return groups


def _ratios(rows: Sequence[Row], prompts: set[str]) -> dict[tuple[int, str], list[float]]:
    ratios: dict[tuple[int, str], list[float]] = {}
    for pair in pairs_of(rows):
        if pair.valid and prompts.issuperset(pair.tree.prompt_hashes):
            ratios.setdefault((pair.tree.concurrency, f"{TREE} {pair.tree.budget}"), []).append(pair.ratio)
    return ratios


def _change(
    key: tuple[int, str], figure: str, unit: str, old: Sequence[float], new: Sequence[float], margin: float
) -> Change:
    before, now = stats.median(old), stats.median(new)
    interval = stats.bootstrap_ratio_ci(new, old)
    return Change(
        key[1], key[0], figure, unit, before, now, now / before, interval, interval[1] < 1 - margin, len(old), len(new)
    )
