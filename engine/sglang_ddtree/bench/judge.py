"""A default against its candidates: correct ones are timed in turn, and the fastest becomes a proposal.

Nothing here knows an op or a device: arms bring their own check and a timer measures them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..selftest_data import Outcome

Steps = Sequence[Callable[[], object]]
Timer = Callable[[Steps], Callable[[], float]]
Row = dict[str, Any]
# A proposal must be this much faster than the default in the median, and faster in this share of the rounds.
MARGIN, AGREEING = 1.02, 0.8
KEEP = "keep the default"


@dataclass(frozen=True)
class Arm:
    """One way to compute an op: what a graph captures, and how far it is from the reference."""

    name: str
    steps: Steps
    check: Callable[[], Outcome]


@dataclass(frozen=True)
class Shape:
    """An op at one size; the first arm is what the launcher picks today."""

    op: str
    sizes: dict[str, int]
    arms: Sequence[Arm]
    notes: dict[str, Any] = field(default_factory=dict)


def judge(shape: Shape, timer: Timer, rounds: int) -> Iterator[Row]:
    """A row per arm and then the verdict; an arm that is wrong or fails is a row with its reason and is not timed."""
    head = {"op": shape.op, **shape.sizes}
    checked = [(arm, *_checked(arm)) for arm in shape.arms]
    clocks: dict[str, Callable[[], float]] = {}
    for arm, fine, _ in checked:
        if fine:
            try:
                clocks[arm.name] = timer(arm.steps)
            except Exception as error:  # one arm that does not compile must not hide the others
                yield {**head, "kernel": arm.name, "error": _said(error)}
    taken = _in_turn(clocks, rounds)
    default = shape.arms[0].name
    rows = []
    for arm, fine, found in checked:
        row: Row = {**head, "kernel": arm.name, "default": arm.name == default, **found}
        if arm.name in taken:
            row |= {"us": statistics.median(taken[arm.name]), "all": taken[arm.name]}
            if default in taken:
                ratios = [a / b for a, b in zip(taken[default], taken[arm.name], strict=True)]
                row |= {"ratio": statistics.median(ratios), "faster_in": sum(ratio > 1 for ratio in ratios)}
        if arm.name in taken or not fine:
            rows.append(row)
    yield from rows
    yield {**head, **shape.notes, "verdict": _verdict(rows, rounds)}


def _checked(arm: Arm) -> tuple[bool, Row]:
    try:
        outcome = arm.check()
    except Exception as error:
        return False, {"error": _said(error)}
    if outcome.ok:
        return True, {"error_to_reference": outcome.error}
    return False, {"error": f"wrong: {outcome.error:.3g} from the reference, at most {outcome.limit:.0e}"}


def _in_turn(clocks: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Every arm once a round, forwards and backwards by turns, so that a clock that drifts meets all of them."""
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    for number in range(rounds):
        for name in list(clocks) if number % 2 == 0 else reversed(clocks):
            taken[name].append(clocks[name]())
    return taken


def _verdict(rows: list[Row], rounds: int) -> str:
    """The name of the candidate that should become the default here, or ``KEEP``."""
    better = [
        row for row in rows
        if row.get("ratio", 0) >= MARGIN and row["faster_in"] >= AGREEING * rounds
    ]  # fmt: skip
    return str(max(better, key=lambda row: row["ratio"])["kernel"]) if better else KEEP


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def table(rows: Sequence[Row]) -> list[str]:
    """A line per shape: what the default takes, what the best takes, and what to do; then every arm that is wrong."""
    lines = [f"{'op':<17} {'sizes':<32} {'default us':>24} {'best us':>34} {'ratio':>6}  verdict"]
    for verdict in (row for row in rows if "verdict" in row):
        sizes = {key: verdict[key] for key in ("width", "bs", "context", "head") if key in verdict}
        mine = [row for row in rows if row["op"] == verdict["op"] and all(row.get(k) == v for k, v in sizes.items())]
        timed = [row for row in mine if "us" in row]
        default = next((row for row in timed if row["default"]), None)
        best = min(timed, key=lambda row: row["us"], default=None)
        shown = " ".join(f"{key}={value}" for key, value in sizes.items())
        cells = [f"{row['kernel']} {row['us']:.1f}" if row else "-" for row in (default, best)]
        ratio = f"{best['ratio']:.2f}" if best and "ratio" in best else "-"
        lines.append(f"{verdict['op']:<17} {shown:<32} {cells[0]:>24} {cells[1]:>34} {ratio:>6}  {verdict['verdict']}")
    lines += [
        f"WRONG {row['op']} {row['kernel']}: {row['error']}" for row in rows if "kernel" in row and "error" in row
    ]
    return lines
