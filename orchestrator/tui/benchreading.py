"""The benchmark of a run as far as it got: figures per budget, the verdict that is forming, rows that do not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.store.facts import Fact
from orchestrator.tui.model import Reading

if TYPE_CHECKING:  # the benchmark imports NumPy, which no screen without a benchmark needs
    from orchestrator.bench.rows import Row
    from orchestrator.bench.summary import ArmSummary

MARGIN = 0.0
NO_VERDICT = "none yet"


@dataclass(frozen=True)
class Refused:
    """A row that does not count."""

    arm: str
    budget: int
    pair: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class BenchReading:
    """`final`: the run wrote its result; else everything is computed from the rows so far."""

    arms: tuple[ArmSummary, ...] = ()
    decision: str = ""
    reason: str = ""
    final: bool = False
    rows: int = 0
    refused: tuple[Refused, ...] = ()
    unreadable: int = 0
    waits_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # arm -> time per token of each request
    skipped: Mapping[str, str] = field(default_factory=dict)
    linear_accept: float | None = None
    measured_in: str = ""  # the earlier run whose measurement this one took over

    @property
    def sentence(self) -> str:
        """The verdict for the header."""
        if not self.decision:
            return f"{NO_VERDICT}, {self.rows} rows" if self.rows else NO_VERDICT
        return self.decision if self.final else f"{self.decision} so far"


def bench_reading(reading: Reading) -> BenchReading:
    """From the facts of the run; rows that another program wrote wrong are counted, never fatal."""
    facts = reading.measured_of("bench.row")
    results = reading.measured_of("bench.result")
    if not facts and not results:
        return BenchReading()
    rows, unreadable = _rows(facts)
    result = results[-1].data if results else {}
    arms = _stored_arms(result) or _arms(rows, result)
    decision, reason = _verdict(result, arms)
    return BenchReading(
        arms=arms, decision=decision, reason=reason, final=bool(result), rows=len(rows), unreadable=unreadable,
        refused=tuple(
            Refused(row.arm, row.budget, row.pair, tuple(f"{item.rule}: {item.reason}" for item in row.findings))
            for row in rows
            if row.findings
        ),
        waits_ms=_waits(rows), skipped=_texts(result.get("skipped")), linear_accept=_linear_accept(arms),
        measured_in=_other_run(reading, [*facts, *results]),
    )  # fmt: skip


def _other_run(reading: Reading, facts: Sequence[Fact]) -> str:
    own = reading.run.id if reading.run else None
    return next((fact.run_id for fact in reversed(facts) if fact.run_id and fact.run_id != own), "")


def _rows(facts: Sequence[Fact]) -> tuple[list[Row], int]:
    from orchestrator.bench.rows import row_from_json

    rows, unreadable = [], 0
    for fact in facts:
        try:
            rows.append(row_from_json(fact.data))
        except (ValueError, TypeError, AttributeError):
            unreadable += 1
    return rows, unreadable


def _stored_arms(result: Mapping[str, Any]) -> tuple[ArmSummary, ...]:
    if not isinstance(result.get("arms"), list):
        return ()
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.bench.summary import ArmSummary

    try:
        return tuple(TypeAdapter(list[ArmSummary]).validate_python(result["arms"]))
    except ValidationError:
        return ()


def _arms(rows: Sequence[Row], result: Mapping[str, Any]) -> tuple[ArmSummary, ...]:
    from orchestrator.bench.summary import Pair, pairs_of, summarise_arm

    grouped: dict[tuple[int, int], list[Pair]] = {}
    for pair in pairs_of(rows):
        grouped.setdefault((pair.tree.concurrency, pair.tree.budget), []).append(pair)
    budgets = len({budget for _, budget in grouped})
    return tuple(summarise_arm(pairs, _margin(result), budgets) for _, pairs in sorted(grouped.items()))


def _margin(result: Mapping[str, Any]) -> float:
    settings = result.get("settings")
    value = settings.get("margin") if isinstance(settings, Mapping) else None
    return float(value) if isinstance(value, int | float) else MARGIN


def _verdict(result: Mapping[str, Any], arms: Sequence[ArmSummary]) -> tuple[str, str]:
    stored = result.get("verdict")
    if isinstance(stored, Mapping):
        return str(stored.get("decision", "?")), str(stored.get("reason", ""))
    if not arms:
        return "", ""
    from orchestrator.bench.verdict import decide

    verdict = decide(arms, _margin(result))
    return str(verdict.decision), verdict.reason


def _waits(rows: Sequence[Row]) -> Mapping[str, tuple[float, ...]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.valid:
            found.setdefault(row.arm, []).extend(r.itl_s * 1e3 for r in row.requests if r.itl_s is not None)
    return {arm: tuple(values) for arm, values in found.items()}


def _linear_accept(arms: Sequence[ArmSummary]) -> float | None:
    known = [arm.linear_tokens_per_step for arm in arms if arm.linear_tokens_per_step is not None]
    return sum(known) / len(known) if known else None


def _texts(value: object) -> Mapping[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, Mapping) else {}
