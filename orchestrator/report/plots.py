"""The plots of a run: PNG and SVG, no display needed, legible without colour and for the colour-blind."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.bench.load import LoadResult
from orchestrator.bench.rows import LINEAR, TREE, Row
from orchestrator.bench.stats import median
from orchestrator.bench.summary import ArmSummary, pairs_of

# Okabe and Ito's palette; every series also has its own marker and line style.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#5A5A5A"
SERIES = ((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"))
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "svg.fonttype": "path",
    "svg.hashsalt": "orchestrate",
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Plot:
    """One picture in both formats. `alt` says in words what it shows, for readers who can't see it."""

    name: str
    title: str
    alt: str
    png: bytes
    svg: str


def _render(
    name: str, title: str, alt: str, draw: Callable[[Axes], None], size: tuple[float, float] = (7.2, 4.2)
) -> Plot:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, facecolor="white")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=150)
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return Plot(name, title, alt, png.getvalue(), svg.getvalue())


def _legend(axes: Axes, columns: int = 4, title: str | None = None) -> None:
    """Below the axes, where it covers neither bars nor intervals."""
    if (figure := axes.get_figure()) is not None and axes.get_legend_handles_labels()[0]:
        figure.legend(
            frameon=False, fontsize=9, ncols=columns, loc="outside lower center", title=title, title_fontsize=9
        )


def _by_load(arms: Sequence[ArmSummary]) -> Mapping[int, list[ArmSummary]]:
    loads: dict[int, list[ArmSummary]] = {}
    for arm in sorted(arms, key=lambda a: (a.concurrency, a.budget)):
        if arm.ratio is not None:
            loads.setdefault(arm.concurrency, []).append(arm)
    return loads


def _budget_axis(axes: Axes, arms: Sequence[ArmSummary]) -> Mapping[int, int]:
    """Budgets at equal distances (they grow by factors); returns budget -> place."""
    budgets = sorted({a.budget for a in arms})
    axes.set_xticks(range(len(budgets)), [str(b) for b in budgets])
    axes.set_xlim(-0.5, len(budgets) - 0.5)
    axes.set_xlabel("tree budget B (nodes without the root; the verify pass is B + 1 wide)")
    return {b: i for i, b in enumerate(budgets)}


def speed_by_budget(arms: Sequence[ArmSummary], margin: float) -> Plot:
    """Paired speed ratio against budget with 95 % intervals, one series per load."""
    loads = _by_load(arms)

    def draw(axes: Axes) -> None:
        place = _budget_axis(axes, arms)
        width = min(0.16, 0.6 / max(1, len(loads)))
        for k, (load, group) in enumerate(loads.items()):
            colour, marker, line = SERIES[k % len(SERIES)]
            x = [place[a.budget] + (k - (len(loads) - 1) / 2) * width for a in group]
            y = [a.ratio or 0.0 for a in group]
            low = [max(0.0, (a.ratio or 0.0) - (a.ci95 or (0.0, 0.0))[0]) for a in group]
            high = [max(0.0, (a.ci95 or (0.0, 0.0))[1] - (a.ratio or 0.0)) for a in group]
            label = f"{load} request{'s' if load > 1 else ''} at once"
            axes.errorbar(x, y, yerr=[low, high], color=colour, marker=marker, linestyle=line, capsize=4, label=label)
        axes.axhline(1.0, color=GREY, linewidth=1.2)
        axes.axhspan(1.0, 1 + margin, color=GREY, alpha=0.15, linewidth=0, label=f"margin {margin * 100:.1f} %")
        axes.set_ylabel("speed, tree ÷ linear (output tokens/s)")
        _legend(axes)

    alt = "; ".join(f"budget {a.budget} at load {a.concurrency}: {a.ratio:.3f}" for g in loads.values() for a in g)
    return _render("speed-by-budget", "Speed against linear, median of pairs with 95 % interval", alt, draw)


def tokens_per_step_by_budget(arms: Sequence[ArmSummary]) -> Plot:
    """Delivered tokens per verify step of tree, of the tree's spine alone where known, and of linear."""
    loads = _by_load(arms)
    group = next(iter(loads.values()), [])

    def draw(axes: Axes) -> None:
        place = _budget_axis(axes, group)
        series: tuple[tuple[str, list[tuple[int, float | None, tuple[float, float] | None]]], ...] = (
            ("tree", [(a.budget, a.tree_tokens_per_step, a.tree_tokens_per_step_ci95) for a in group]),
            (
                "linear, same prompts",
                [(a.budget, a.linear_tokens_per_step, a.linear_tokens_per_step_ci95) for a in group],
            ),
            ("spine of the tree alone", [(a.budget, a.chain_tokens_per_step, None) for a in group]),
        )
        for k, (label, points) in enumerate(series):
            colour, marker, line = SERIES[k]
            known = [(place[b] + (k - 1) * 0.05, v, ci or (v, v)) for b, v, ci in points if v is not None]
            if known:
                x, y = [p for p, _, _ in known], [v for _, v, _ in known]
                error = [[max(0.0, v - ci[0]) for _, v, ci in known], [max(0.0, ci[1] - v) for _, v, ci in known]]
                axes.errorbar(x, y, yerr=error, color=colour, marker=marker, linestyle=line, capsize=4, label=label)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        axes.set_ylabel("τ (output tokens per verify step)")
        _legend(axes)

    alt = "; ".join(
        f"budget {a.budget}: tree {a.tree_tokens_per_step or 0:.2f}, linear {a.linear_tokens_per_step or 0:.2f}"
        for a in group
    )
    return _render("tokens-per-step", "Tokens per verify step with 95 % interval over groups", alt, draw)


def step_time_by_budget(arms: Sequence[ArmSummary]) -> Plot:
    """Milliseconds per verify step: what a wider tree costs."""
    loads = _by_load(arms)
    group = next(iter(loads.values()), [])

    def draw(axes: Axes) -> None:
        place = _budget_axis(axes, group)
        x = [place[a.budget] for a in group]
        axes.bar([i - 0.2 for i in x], [a.linear_ms_per_step or 0 for a in group], 0.38, color=BLUE, label="linear")
        axes.bar(
            [i + 0.2 for i in x], [a.tree_ms_per_step or 0 for a in group], 0.38, color=ORANGE, hatch="//",
            edgecolor="white", label="tree",
        )  # fmt: skip
        axes.set_ylabel("decode time per verify step (ms)")
        _legend(axes)

    alt = "; ".join(
        f"budget {a.budget}: tree {a.tree_ms_per_step or 0:.1f} ms, linear {a.linear_ms_per_step or 0:.1f} ms"
        for a in group
    )
    return _render("step-time", "Cost of a verify step", alt, draw)


def latency_distribution(rows: Sequence[Row], budget: int, concurrency: int = 1) -> Plot:
    """Cumulative distribution of the time between tokens of both arms, valid pairs of one budget only."""
    pairs = [p for p in pairs_of(rows) if p.valid and p.tree.concurrency == concurrency and p.tree.budget == budget]
    chosen = [row for pair in pairs for row in (pair.linear, pair.tree)]
    groups = {
        name: sorted(
            q.itl_s * 1e3 for r in chosen if (r.arm == LINEAR) == (name == LINEAR) for q in r.requests if q.itl_s
        )
        for name in (LINEAR, f"tree {budget}")
    }

    def draw(axes: Axes) -> None:
        for (name, values), (colour, _, line) in zip(groups.items(), SERIES, strict=False):
            if values:
                share = [(i + 1) / len(values) * 100 for i in range(len(values))]
                axes.step(
                    [values[0], *values],
                    [0, *share],
                    where="post",
                    color=colour,
                    linestyle=line,
                    label=f"{name} (n={len(values)})",
                )
        axes.set_xlabel("mean time between output tokens of a request (ms)")
        axes.set_ylabel("requests at or below (%)")
        axes.set_ylim(0, 101)
        _legend(axes)

    alt = "; ".join(f"{name}: median {values[len(values) // 2]:.2f} ms" for name, values in groups.items() if values)
    return _render(f"latency-{budget}", "Time between tokens", alt, draw)


@dataclass(frozen=True)
class LoadPoint:
    """One server under one load: the load's label, output tokens/s in all, median time between tokens in ms."""

    load: str
    tok_s: float
    itl_ms: float


def points_of_ladder(results: Sequence[LoadResult]) -> list[LoadPoint]:
    """The levels of a load ladder in which at least one request came to its second token."""
    return [
        LoadPoint(
            str(r.level.concurrency) if r.level.rate_per_s is None else f"{r.level.rate_per_s:g}/s",
            r.summary.tok_s,
            r.summary.itl.p50 * 1e3,
        )
        for r in results
        if r.summary.itl.p50
    ]


def points_of_rows(rows: Sequence[Row]) -> dict[str, list[LoadPoint]]:
    """Arm -> its valid rows by load; only arms measured at two loads or more make a curve."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        if row.valid:
            name = LINEAR if row.arm == LINEAR else f"{row.arm} {row.budget}"
            found.setdefault(name, {}).setdefault(row.concurrency, []).append(row)
    curves = {
        name: [point for load in sorted(loads) if (point := _point(load, loads[load]))]
        for name, loads in sorted(found.items(), key=lambda item: (item[0] != LINEAR, len(item[0]), item[0]))
    }
    return {name: points for name, points in curves.items() if len(points) > 1}


def _point(load: int, rows: Sequence[Row]) -> LoadPoint | None:
    times = [r.itl_s * 1e3 for row in rows for r in row.requests if r.itl_s]
    return LoadPoint(str(load), median([row.tok_s for row in rows]), median(times)) if times else None


def throughput_latency(series: Mapping[str, Sequence[LoadPoint]]) -> Plot:
    """Total throughput against median time between tokens, one line per server, points labelled with the load."""

    def draw(axes: Axes) -> None:
        for k, (name, points) in enumerate(series.items()):
            colour, marker, line = SERIES[k % len(SERIES)]
            x, y = [p.itl_ms for p in points], [p.tok_s for p in points]
            axes.plot(x, y, color=colour, marker=marker, linestyle=line, label=name)
            for point in points:
                at = (point.itl_ms, point.tok_s)
                axes.annotate(point.load, at, textcoords="offset points", xytext=(6, -11), color=colour, fontsize=9)
        axes.set_xlabel("median time between output tokens (ms)")
        axes.set_ylabel("total throughput (output tokens/s)")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        axes.margins(x=0.08)
        _legend(axes, len(series), "labels: requests at once, or per second")

    alt = "; ".join(
        f"{name}: {', '.join(f'{p.tok_s:.0f} tokens/s at {p.load}' for p in points)}" for name, points in series.items()
    )
    return _render("throughput-latency", "Throughput against latency", alt, draw)


def stage_times(stages: Mapping[str, Mapping[str, float]]) -> Plot:
    """Stacked stage times of a step: arm -> stage -> milliseconds (from `ddtree_step_seconds`)."""
    names = list(dict.fromkeys(stage for times in stages.values() for stage in times))
    hatches = ("", "//", "..", "xx", "\\\\", "oo")
    colours = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9")

    def draw(axes: Axes) -> None:
        left = [0.0] * len(stages)
        for k, stage in enumerate(names):
            widths = [times.get(stage, 0.0) for times in stages.values()]
            axes.barh(
                list(stages),
                widths,
                left=left,
                label=stage,
                color=colours[k % 6],
                hatch=hatches[k % 6],
                edgecolor="white",
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("time of a step by stage (ms)")
        _legend(axes, len(names))

    alt = "; ".join(f"{arm}: {sum(times.values()):.2f} ms" for arm, times in stages.items())
    return _render("stage-times", "Where a step's time goes", alt, draw, size=(7.2, 2.0 + 0.5 * len(stages)))


def sweep_plots(rows: Sequence[Row], arms: Sequence[ArmSummary], margin: float, budget: int | None) -> list[Plot]:
    """Every plot that the rows of a sweep support; [] when no pair is valid."""
    if not any(a.ratio is not None for a in arms):
        return []
    plots = [speed_by_budget(arms, margin)]
    if any(a.tree_tokens_per_step is not None for a in arms):
        plots += [tokens_per_step_by_budget(arms), step_time_by_budget(arms)]
    if budget is not None:
        load = min(a.concurrency for a in arms if a.budget == budget)
        plots.append(latency_distribution(rows, budget, load))
    if curves := points_of_rows(rows):
        plots.append(throughput_latency(_main_curves(curves, budget)))
    stages = stages_by_budget(rows)
    return [*plots, stage_times(stages)] if stages else plots


def _main_curves(curves: Mapping[str, Sequence[LoadPoint]], budget: int | None) -> dict[str, Sequence[LoadPoint]]:
    """Linear, the budget of the verdict and others, as many as there are distinct line styles."""
    first = (LINEAR, f"{TREE} {budget}")
    names = sorted(curves, key=lambda name: name not in first)[: len(SERIES)]
    return {name: points for name, points in curves.items() if name in names}


def stages_by_budget(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean stage times of the valid tree rows, by arm; {} when no server tells them."""
    arms: dict[str, list[Mapping[str, float]]] = {}
    for row in sorted(rows, key=lambda r: r.budget):
        if row.valid and row.stage_ms:
            arms.setdefault(f"{row.arm} {row.budget}", []).append(row.stage_ms)
    return {
        arm: {stage: sum(t.get(stage, 0.0) for t in times) / len(times) for stage in times[0]}
        for arm, times in arms.items()
    }
