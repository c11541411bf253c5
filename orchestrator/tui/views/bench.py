"""The bench view: two plots against the budget, and the page with figures, histogram and refused rows."""

from __future__ import annotations

import math
from typing import Any

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from orchestrator.tui.benchreading import BenchReading
from orchestrator.tui.feed import Update
from orchestrator.tui.look import Look
from orchestrator.tui.pages.bench import bench_page
from orchestrator.tui.views.base import View
from orchestrator.tui.widgets.blockview import BlockView
from orchestrator.tui.words import Tone

FRAME_ROWS = 5  # of a plot: title, box, names below


class BenchView(View):
    """The plots appear with the first figures; the plotting library is imported only then."""

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(look, id=id)
        self.plots = Container(id="plots")
        self.page = BlockView(look, id="bench-page")
        self.bench = BenchReading()

    def compose(self) -> ComposeResult:
        yield self.plots
        yield self.page

    def show(self, update: Update, now: float) -> None:
        if update.bench != self.bench or update.fresh:
            self.bench = update.bench
            self._draw()

    def _draw(self, *, anew: bool = False) -> None:
        self.page.show(bench_page(self.bench), anew=anew)
        self.plots.display = bool(self.bench.arms)
        if self.bench.arms:
            self.run_worker(self._draw_plots(), group="plots", exclusive=True)

    async def _draw_plots(self) -> None:
        if not self.plots.children:
            await self.plots.mount(*_new_plots())  # a plot takes data only once it is part of the screen
        ratio, accept = self.plots.children
        _plot_ratio(ratio, self.bench, self.look)
        _plot_accept(accept, self.bench, self.look)

    def dress(self, look: Look) -> None:
        super().dress(look)
        self.page.look = look
        self._draw(anew=True)

    def focus_first(self) -> None:
        self.screen.set_focus(self.page)


def _new_plots() -> list[Widget]:
    from textual_plot import PlotWidget

    plots: list[Widget] = []
    for title in ("speed against linear, 95 % interval", "τ, tokens a step (line: linear)"):
        plot = PlotWidget(allow_pan_and_zoom=False)
        plot.can_focus = False
        plot.border_title = title
        plot.set_y_formatter(_few_ticks(plot))
        for margin, cells in ((PlotWidget.margin_top, 0), (PlotWidget.margin_bottom, 2), (PlotWidget.margin_left, 7)):
            plot.set_reactive(margin, cells)
        plots.append(plot)
    return plots


def _few_ticks(plot: Widget) -> Any:
    """Round values, and no more of them than the height has room for: two on one row would leave out one."""
    from textual_plot.axis_formatter import NumericAxisFormatter

    class FewTicks(NumericAxisFormatter):
        def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
            most = min(max_ticks, max(2, (plot.size.height - FRAME_ROWS) // 2))
            found = [round_values(min_, max_, step) for step in round_steps(max_ - min_)]
            return next((ticks for ticks in found if len(ticks) <= most), found[-1])

    return FewTicks()


def round_steps(span: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from a twentieth of the span up to half of it."""
    power = 10.0 ** math.floor(math.log10(span / 20))
    steps = [factor * power * 10**exponent for exponent in range(3) for factor in (1, 2, 5)]
    return [step for step in steps if span / 20 <= step <= span / 2]


def round_values(low: float, high: float, step: float) -> list[float]:
    """The multiples of the step within the bounds."""
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _plot_ratio(plot: Any, bench: BenchReading, look: Look) -> None:
    from textual_plot import HiResMode

    arms = [arm for arm in bench.arms if arm.ratio is not None and arm.ci95 is not None]
    plot.clear()
    if not arms:
        return
    at = list(range(1, len(arms) + 1))
    lows, highs = [arm.ci95[0] for arm in arms if arm.ci95], [arm.ci95[1] for arm in arms if arm.ci95]
    _axis(plot, [arm.budget for arm in arms], [*lows, *highs, 1.0])
    plot.plot([0.5, len(arms) + 0.5], [1.0, 1.0], line_style=_style(look.tones[Tone.DIM]), hires_mode=HiResMode.BRAILLE)
    middles = [(low + high) / 2 for low, high in zip(lows, highs, strict=True)]
    halves = [(high - low) / 2 for low, high in zip(lows, highs, strict=True)]
    plot.errorbar(at, middles, yerr=halves, marker="│", marker_style=_style(look.tones[Tone.BUSY]))
    plot.scatter(at, [arm.ratio for arm in arms], marker="●", marker_style=_style(look.tones[Tone.GOOD]))


def _plot_accept(plot: Any, bench: BenchReading, look: Look) -> None:
    from textual_plot import HiResMode

    arms = [arm for arm in bench.arms if arm.tree_tokens_per_step is not None]
    plot.clear()
    if not arms:
        return
    trees = [arm.tree_tokens_per_step or 0.0 for arm in arms]
    linear = bench.linear_accept
    at = list(range(1, len(arms) + 1))
    _axis(plot, [arm.budget for arm in arms], [*trees, *([linear] if linear is not None else [])])
    if linear is not None:
        plot.plot(
            [0.5, len(arms) + 0.5],
            [linear, linear],
            line_style=_style(look.tones[Tone.DIM]),
            hires_mode=HiResMode.BRAILLE,
        )
    plot.plot(at, trees, line_style=_style(look.tones[Tone.BUSY]), hires_mode=HiResMode.BRAILLE)
    plot.scatter(at, trees, marker="●", marker_style=_style(look.tones[Tone.GOOD]))


def _style(style: Style) -> str:
    return str(style) if style else "default"


def _axis(plot: Any, budgets: list[int], values: list[float]) -> None:
    """One place a budget (they double, so a linear axis would crowd the small ones), and room above and below."""
    from textual_plot.axis_formatter import CategoricalAxisFormatter

    room = max(0.02, (max(values) - min(values)) * 0.15)
    plot.set_xlimits(0.5, len(budgets) + 0.5)
    plot.set_ylimits(min(values) - room, max(values) + room)
    plot.set_x_formatter(CategoricalAxisFormatter([f"B={budget}" for budget in budgets]))
    plot.set_xticks(list(range(1, len(budgets) + 1)))
