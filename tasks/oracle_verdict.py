"""What an acceptance oracle's figures mean: per budget what a step may cost, and whether a tree is worth measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from orchestrator.bench.stats import RESAMPLES, SEED

REPETITIVE_BELOW = 0.6  # share of distinct 6-grams; loops inflate acceptance
FEWEST_PROMPTS = 4
ENOUGH_OF_THE_GAIN = 0.8


@dataclass(frozen=True)
class OracleRow:
    """One budget. `nodes` 0 is the chain; `width` = verify rows T.

    break_even: a tree pays while its step costs less than this many linear steps; ci95 over prompts.
    step_cost: what a step is calculated to cost on this GPU, in linear steps; None where nothing is known.
    """

    nodes: int
    width: int
    tokens_per_step: float
    break_even: float
    ci95: tuple[float, float]
    step_cost: float | None = None

    @property
    def ratio(self) -> float | None:
        """Calculated tokens per second against the linear service."""
        return None if self.step_cost is None else self.break_even / self.step_cost

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": None if self.ratio is None else round(self.ratio, 4)}


def basis(prompts: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """The prompts that the figures are taken from, and which those are, in words."""
    varied = [p for p in prompts if p["distinct_6grams"] >= REPETITIVE_BELOW]
    if len(varied) >= FEWEST_PROMPTS:
        return varied, f"{len(varied)} of {len(prompts)} prompts, those whose text does not loop"
    return list(prompts), f"all {len(prompts)} prompts, as too few do not loop: real text accepts less"


def rows(document: Mapping[str, Any], costs: Mapping[int, float]) -> list[OracleRow]:
    """The chain and every budget of a baseline document; `costs`: nodes -> calculated step cost."""
    chosen, _ = basis(document["prompts"])
    chain = _counts(chosen, "chain")
    found = [OracleRow(0, int(document["block_size"]), _rate(chain), 1.0, (1.0, 1.0), 1.0 if costs else None)]
    for nodes in document["budgets"]:
        tree = _counts(chosen, str(nodes))
        low, high = _interval(tree, chain)
        rate = _rate(tree)
        found.append(
            OracleRow(nodes, nodes + 1, rate, round(rate / found[0].tokens_per_step, 4), (low, high), costs.get(nodes))
        )
    return found


def verdict(found: Sequence[OracleRow], margin: float, said: str) -> dict[str, Any]:
    """{decision: worth measuring | keep linear | inconclusive, budget, ratio, ci95, n, reason}; `said` names the basis."""
    trees = [row for row in found if row.nodes]
    costed = [row for row in trees if row.step_cost is not None]
    best = max(costed, key=lambda row: row.ratio or 0.0) if costed else _knee(trees)
    cost = best.step_cost or 1.0
    low, high = (bound / cost for bound in best.ci95)
    decision = "worth measuring" if low > 1 + margin else "keep linear" if high <= 1 + margin else "inconclusive"
    pays = f"at B={best.nodes} a tree pays while its step costs less than {best.break_even:.2f} linear steps"
    known = (
        f"calculated for this GPU: {cost:.2f}"
        if best.step_cost is not None
        else "what a step costs on this host is not known before it is measured"
    )
    return {
        "decision": decision, "budget": best.nodes, "ratio": round(best.break_even / cost, 4),
        "ci95": [round(low, 4), round(high, 4)], "n": 0, "reason": f"{pays} ({known}); from {said}",
    }  # fmt: skip


def _knee(trees: Sequence[OracleRow]) -> OracleRow:
    """The smallest budget that has most of the widest one's gain: wider ones buy little and cost more."""
    widest = max(row.break_even for row in trees) - 1
    return next(row for row in trees if row.break_even - 1 >= ENOUGH_OF_THE_GAIN * widest)


def _counts(prompts: Sequence[Mapping[str, Any]], mode: str) -> np.ndarray:
    """[prompts, 2]: tokens and steps of each."""
    return np.array([(sum(p["accept"][mode]), len(p["accept"][mode])) for p in prompts], dtype=np.float64)


def _rate(counts: np.ndarray) -> float:
    return round(float(counts[:, 0].sum() / counts[:, 1].sum()), 4)


def _interval(tree: np.ndarray, chain: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval over prompts of the ratio of pooled tokens per step."""
    picks = np.random.default_rng(SEED).integers(0, len(tree), size=(RESAMPLES, len(tree)))
    above, below = (part[picks].sum(axis=1) for part in (tree, chain))
    ratios = (above[:, 0] / above[:, 1]) / (below[:, 0] / below[:, 1])
    low, high = np.percentile(ratios, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)
