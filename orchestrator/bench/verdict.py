"""From valid pairs to a decision: adopt a budget, keep linear, or say how many pairs would decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.bench.summary import ArmSummary, Standing


class Decision(StrEnum):
    ADOPT = "adopt"
    KEEP_LINEAR = "keep linear"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


@dataclass(frozen=True)
class LoadVerdict:
    """The decision at one concurrency."""

    concurrency: int
    decision: Decision
    budget: int | None
    ratio: float | None
    ci95: tuple[float, float] | None
    n: int
    pairs_needed: int | None
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The answer to "does DDTree pay here?". `budget`, `ratio`, `ci95`, `n` belong to the budget named.

    holds_for: concurrencies at which adopting pays. widths: concurrency -> nodes (0 = linear) for an adaptive
    service. conditional: adopting pays at some of the loads tried, not at all of them.
    """

    decision: Decision
    budget: int | None
    ratio: float | None
    ci95: tuple[float, float] | None
    n: int
    reason: str
    margin: float
    pairs_needed: int | None = None
    conditional: bool = False
    holds_for: tuple[int, ...] = ()
    widths: dict[int, int] = field(default_factory=dict)
    loads: tuple[LoadVerdict, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decide_at_load(arms: Sequence[ArmSummary], margin: float) -> LoadVerdict:
    """The decision at one concurrency from the summaries of its budgets."""
    with_data = [a for a in arms if a.ratio is not None]
    concurrency = arms[0].concurrency if arms else 0
    if not with_data:
        return LoadVerdict(
            concurrency, Decision.INVALID, None, None, None, 0, None,
            "no valid pair remains; see the findings of the rows",
        )  # fmt: skip

    def answer(decision: Decision, arm: ArmSummary, needed: int | None, why: str) -> LoadVerdict:
        return LoadVerdict(concurrency, decision, arm.budget, arm.ratio, arm.ci95, arm.n, needed, why)

    best = max(with_data, key=lambda a: a.ratio or 0.0)
    better = [a for a in with_data if a.standing is Standing.BETTER]
    if better:
        pick = max(better, key=lambda a: a.ratio or 0.0)
        return answer(Decision.ADOPT, pick, None, f"budget {pick.budget} is {_gain(pick)}; {pick.reason}")
    still_open = [a for a in arms if a.standing in (Standing.OPEN, Standing.NO_DATA)]
    if not still_open:
        why = f"no budget gains more than {margin * 100:.1f} %; the best, {best.budget}, is {_gain(best)}"
        return answer(Decision.KEEP_LINEAR, best, None, why)
    needs = [a.pairs_needed for a in still_open if a.pairs_needed is not None]
    more = f"about {min(needs)} pairs would decide" if needs else "more pairs are needed"
    lead = max(still_open, key=lambda a: a.ratio or 0.0)
    if lead.ratio is None:
        return answer(Decision.INCONCLUSIVE, best, None, f"budget {lead.budget} has no valid pair")
    return answer(
        Decision.INCONCLUSIVE, lead, min(needs) if needs else None,
        f"budget {lead.budget} is {_gain(lead)}: {lead.reason}; {more}",
    )  # fmt: skip


def _gain(arm: ArmSummary) -> str:
    ratio, ci = arm.ratio or 0.0, arm.ci95 or (0.0, 0.0)
    return f"{ratio:.3f} times as fast as linear (95 % interval {ci[0]:.3f}–{ci[1]:.3f}, {arm.n} pairs)"


def decide(arms: Sequence[ArmSummary], margin: float) -> Verdict:
    """One verdict over all loads: adopt where it pays somewhere, conditional where it does not pay everywhere."""
    by_load: dict[int, list[ArmSummary]] = {}
    for arm in arms:
        by_load.setdefault(arm.concurrency, []).append(arm)
    loads = tuple(decide_at_load(by_load[c], margin) for c in sorted(by_load))
    if not loads:
        return Verdict(Decision.INVALID, None, None, None, 0, "nothing was measured", margin)
    lead = _leading(loads)
    adopting = tuple(v.concurrency for v in loads if v.decision is Decision.ADOPT)
    conditional = bool(adopting) and len(adopting) < len(loads)
    reason = lead.reason
    if len(loads) > 1:
        reason += f"; that is at concurrency {lead.concurrency} (by load: {_load_words(loads)})"
    return Verdict(
        decision=lead.decision,
        budget=lead.budget,
        ratio=lead.ratio,
        ci95=lead.ci95,
        n=lead.n,
        reason=reason,
        margin=margin,
        pairs_needed=lead.pairs_needed,
        conditional=conditional,
        holds_for=adopting,
        widths={v.concurrency: (v.budget or 0) if v.decision is Decision.ADOPT else 0 for v in loads},
        loads=loads,
    )


def _leading(loads: Sequence[LoadVerdict]) -> LoadVerdict:
    for decision in (Decision.ADOPT, Decision.INCONCLUSIVE, Decision.KEEP_LINEAR, Decision.INVALID):
        fitting = [v for v in loads if v.decision is decision]
        if fitting:
            return max(fitting, key=lambda v: v.ratio or 0.0)
    raise AssertionError("a load verdict has one of the four decisions")


def _load_words(loads: Sequence[LoadVerdict]) -> str:
    return ", ".join(f"{v.concurrency}: {v.decision}" for v in loads)
