"""The benchmark: what each budget shows, how the verdict forms, which rows do not count and why."""

from __future__ import annotations

from orchestrator.tui.benchreading import BenchReading
from orchestrator.tui.blocks import Block, Page, Span
from orchestrator.tui.words import Tone, bar, number

BINS, BAR_WIDTH = 8, 14
_DECISION_TONES = {"adopt": Tone.GOOD, "keep linear": Tone.GOOD, "inconclusive": Tone.WARN, "invalid": Tone.BAD}
_STANDING_TONES = {"better": Tone.GOOD, "not better": Tone.PLAIN, "open": Tone.WARN, "no valid pair": Tone.BAD}


def bench_page(bench: BenchReading) -> list[Block]:
    page = Page()
    if not bench.rows and not bench.final:
        page.say("This run has measured nothing, or nothing yet.")
        if bench.unreadable:
            page.say(Span(f"{bench.unreadable} rows cannot be read: another version wrote them.", Tone.BAD))
        return page.blocks
    page.heading("Verdict" if bench.final else "Verdict, as far as it goes")
    page.say(Span(bench.decision or "none yet", _DECISION_TONES.get(bench.decision, Tone.STRONG)), f": {bench.reason}")
    if bench.measured_in:
        page.say(Span(f"Measured in run {bench.measured_in}, whose result still holds.", Tone.DIM))
    page.heading("Budgets against linear (B nodes without the root, T = B + 1 verified)")
    many_loads = len({arm.concurrency for arm in bench.arms}) > 1
    columns = [
        "B",
        "T",
        *(["load"] if many_loads else []),
        "ratio",
        "95 % interval",
        "pairs",
        "τ",
        "τ linear",
        "standing",
    ]
    page.table(columns, [_arm(arm, many_loads) for arm in bench.arms], [c for c in columns if c not in ("standing",)])
    for arm in bench.arms:
        if arm.reason:
            page.say(
                f"B={arm.budget}: {arm.reason}",
                f"; about {arm.pairs_needed} pairs would decide" if arm.pairs_needed else "",
            )
    for budget, reason in bench.skipped.items():
        page.say(f"B={budget} was stopped: {reason}")
    _histogram(page, bench)
    _refused(page, bench)
    return page.blocks


def _arm(arm: object, with_load: bool) -> list[str | Span]:
    from orchestrator.bench.summary import ArmSummary

    assert isinstance(arm, ArmSummary)
    interval = f"{arm.ci95[0]:.3f}–{arm.ci95[1]:.3f}" if arm.ci95 else "–"
    pairs = f"{arm.n}" + (f" (+{arm.invalid_pairs} refused)" if arm.invalid_pairs else "")
    return [
        str(arm.budget),
        str(arm.budget + 1),
        *([str(arm.concurrency)] if with_load else []),
        Span(number(arm.ratio, 3), Tone.STRONG),
        interval,
        pairs,
        number(arm.tree_tokens_per_step),
        number(arm.linear_tokens_per_step),
        Span(str(arm.standing), _STANDING_TONES.get(str(arm.standing), Tone.PLAIN)),
    ]


def _histogram(page: Page, bench: BenchReading) -> None:
    """Time per token of every request, both arms over the same bins."""
    waits = [value for values in bench.waits_ms.values() for value in values]
    if not waits:
        return
    low, high = min(waits), max(waits)
    step = (high - low) / BINS or 1.0
    counts = {arm: [0] * BINS for arm in bench.waits_ms}
    for arm, values in bench.waits_ms.items():
        for value in values:
            counts[arm][min(BINS - 1, int((value - low) / step))] += 1
    most = max(max(row) for row in counts.values()) or 1
    page.heading("Time per token of each request, ms")
    names = sorted(counts)
    rows = [
        [f"{low + step * at:.2f}–{low + step * (at + 1):.2f}",
         *(f"{counts[name][at]:>3} {bar(counts[name][at] / most, BAR_WIDTH)}" for name in names)]
        for at in range(BINS)
    ]  # fmt: skip
    page.table(("from–to", *names), rows)


def _refused(page: Page, bench: BenchReading) -> None:
    page.heading("Rows that do not count")
    if bench.unreadable:
        page.say(Span(f"{bench.unreadable} rows cannot be read: another version wrote them.", Tone.BAD))
    if not bench.refused:
        page.say("none")
        return
    rows: list[list[str | Span]] = [
        [row.arm, str(row.budget), str(row.pair), Span("; ".join(row.reasons), Tone.WARN)] for row in bench.refused
    ]
    page.table(("arm", "B", "pair", "why"), rows, ("B", "pair"))
