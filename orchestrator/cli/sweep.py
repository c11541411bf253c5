"""A sweep as a table for people: each budget against linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.cli.output import Output

COLUMNS = ("at once", "B", "T", "pairs", "ratio", "95 % CI", "tok/s", "tok/step", "standing")


def print_sweep(out: Output, arms: Sequence[Mapping[str, Any]]) -> None:
    """One line for each load and budget (`ArmSummary.to_json`); arrows go from linear to tree."""
    if arms:
        out.table(COLUMNS, [_cells(arm) for arm in arms])


def _cells(arm: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = arm["ci95"] or (None, None)
    invalid = f" (+{arm['invalid_pairs']} invalid)" if arm["invalid_pairs"] else ""
    return (
        str(arm["concurrency"]), str(arm["budget"]), str(arm["budget"] + 1), f"{arm['n']}{invalid}",
        _figure(arm["ratio"], 3), f"{_figure(low, 3)}-{_figure(high, 3)}",
        f"{_figure(arm['linear_tok_s'], 1)} -> {_figure(arm['tree_tok_s'], 1)}",
        f"{_figure(arm['linear_tokens_per_step'], 2)} -> {_figure(arm['tree_tokens_per_step'], 2)}",
        str(arm["standing"]),
    )  # fmt: skip


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
