"""From valid pairs to a decision: adopt a budget, keep linear, or say how many pairs would decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.bench.summary import ArmSummary, Standing, fault_words

NOT_MEASURED = "nothing was measured"


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

    holds_for: concurrencies at which that budget pays. widths: concurrency -> nodes (0 = linear) for an adaptive
    service. conditional: the budget was shown to pay at some of the loads asked for, not at all of them.
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


def decide_at_load(
    concurrency: int, arms: Sequence[ArmSummary], margin: float, barred: Mapping[int, str]
) -> LoadVerdict:
    """The decision at one concurrency from the summaries of its budgets. barred: budget -> why it is not adopted."""
    with_data = [a for a in arms if a.ratio is not None]
    if not with_data:
        why = "no valid pair remains; see the findings of the rows" if arms else NOT_MEASURED
        return LoadVerdict(concurrency, Decision.INVALID, None, None, None, 0, None, why)
    better = [a for a in with_data if _wins(a, barred)]
    if better:
        return _adoption(max(better, key=_speed))
    best = max(with_data, key=_speed)
    still_open = [a for a in arms if a.standing is not Standing.NOT_BETTER]
    if not still_open:
        why = f"no budget gains more than {margin * 100:.1f} %; the best, {best.budget}, is {_gain(best)}"
        return _answer(Decision.KEEP_LINEAR, best, None, why)
    free = [a for a in still_open if a.budget not in barred]
    lead = max(free or still_open, key=_speed)
    if lead.ratio is None:
        return _answer(Decision.INCONCLUSIVE, best, None, f"budget {lead.budget} has no valid pair")
    if not free:
        why = f"budget {lead.budget} is {_gain(lead)}, but {barred[lead.budget]}"
        return _answer(Decision.INCONCLUSIVE, lead, None, why)
    needed = min((a.pairs_needed for a in free if a.pairs_needed is not None), default=None)
    more = "more pairs are needed" if needed is None else f"about {needed} pairs would decide"
    return _answer(Decision.INCONCLUSIVE, lead, needed, f"budget {lead.budget} is {_gain(lead)}: {lead.reason}; {more}")


def _wins(arm: ArmSummary, barred: Mapping[int, str]) -> bool:
    return arm.standing is Standing.BETTER and arm.budget not in barred


def _speed(arm: ArmSummary) -> float:
    return arm.ratio or 0.0


def _adoption(arm: ArmSummary) -> LoadVerdict:
    return _answer(Decision.ADOPT, arm, None, f"budget {arm.budget} is {_gain(arm)}; {arm.reason}")


def _answer(decision: Decision, arm: ArmSummary, needed: int | None, why: str) -> LoadVerdict:
    return LoadVerdict(arm.concurrency, decision, arm.budget, arm.ratio, arm.ci95, arm.n, needed, why)


def _gain(arm: ArmSummary) -> str:
    ratio, ci = arm.ratio or 0.0, arm.ci95 or (0.0, 0.0)
    return f"{ratio:.3f} times as fast as linear (95 % interval {ci[0]:.3f}–{ci[1]:.3f}, {arm.n} pairs)"


def decide(
    arms: Sequence[ArmSummary],
    margin: float,
    asked: Sequence[int] = (),
    failed: Mapping[int, str] | None = None,
) -> Verdict:
    """One verdict over all loads: adopt where it pays somewhere, conditional where it does not pay everywhere.

    asked: the concurrencies of the sweep, of which one without any arm is shown by nothing. failed: budget -> the
    error that ended its measurement; whatever it won before, a server that dies under a load is not adopted.
    """
    if not arms:
        return Verdict(Decision.INVALID, None, None, None, 0, NOT_MEASURED, margin)
    by_load: dict[int, list[ArmSummary]] = {concurrency: [] for concurrency in asked}
    for arm in arms:
        by_load.setdefault(arm.concurrency, []).append(arm)
    barred = _barred(arms, failed or {})
    loads = tuple(decide_at_load(c, by_load[c], margin, barred) for c in sorted(by_load))
    winners = [a for a in arms if _wins(a, barred)]
    lead = _adoption(_widest(winners)) if winners else _leading(loads)
    holds_for = tuple(sorted(a.concurrency for a in winners if a.budget == lead.budget))
    return Verdict(
        decision=lead.decision,
        budget=lead.budget,
        ratio=lead.ratio,
        ci95=lead.ci95,
        n=lead.n,
        reason=lead.reason + _over_loads(lead, loads) + _left_out(lead, arms, barred),
        margin=margin,
        pairs_needed=lead.pairs_needed,
        conditional=bool(winners) and len(holds_for) < len(loads),
        holds_for=holds_for,
        widths={v.concurrency: (v.budget or 0) if v.decision is Decision.ADOPT else 0 for v in loads},
        loads=loads,
    )


def _barred(arms: Sequence[ArmSummary], failed: Mapping[int, str]) -> dict[int, str]:
    """Budget -> why it is adopted at no load: one service gets them all, so a fault at one counts for every other."""
    found = {budget: f"its measurement ended with an error ({why.rstrip('.')})" for budget, why in failed.items()}
    for arm in arms:
        if arm.faults:
            words = f"{fault_words(arm.faults, arm.n + arm.invalid_pairs)} at concurrency {arm.concurrency}"
            found.setdefault(arm.budget, words)
    return found


def _widest(winners: Sequence[ArmSummary]) -> ArmSummary:
    """The fastest of the budgets that pay at the most loads: a fixed width has to serve them all."""
    budgets = [a.budget for a in winners]
    return max(winners, key=lambda a: (budgets.count(a.budget), _speed(a)))


def _leading(loads: Sequence[LoadVerdict]) -> LoadVerdict:
    for decision in (Decision.INCONCLUSIVE, Decision.KEEP_LINEAR, Decision.INVALID):
        fitting = [v for v in loads if v.decision is decision]
        if fitting:
            return max(fitting, key=lambda v: v.ratio or 0.0)
    raise AssertionError("a load verdict without a winner has one of these three decisions")


def _over_loads(lead: LoadVerdict, loads: Sequence[LoadVerdict]) -> str:
    """At which load the leading sentence was measured, and what every load says."""
    if len(loads) < 2:
        return ""
    said = {v.concurrency: "not measured" if v.reason == NOT_MEASURED else v.decision for v in loads}
    words = ", ".join(f"{concurrency}: {word}" for concurrency, word in said.items())
    return f"; that is at concurrency {lead.concurrency} (by load: {words})"


def _left_out(lead: LoadVerdict, arms: Sequence[ArmSummary], barred: Mapping[int, str]) -> str:
    """The budgets that might have won otherwise, unless the sentence names the reason already."""
    hopeful = {a.budget for a in arms if a.ratio is not None and a.standing is not Standing.NOT_BETTER}
    untold = [b for b in sorted(hopeful & barred.keys()) if barred[b] not in lead.reason]
    return "".join(f"; budget {b} is left out: {barred[b]}" for b in untold)
