"""The application: one feed of the store, six views of it, and the keys that lead to actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.filter import NoColor
from textual.message import Message
from textual.widgets import ContentSwitcher, Footer, Static

from orchestrator.tui import feed as feeding
from orchestrator.tui.eta import Durations
from orchestrator.tui.feed import Feed
from orchestrator.tui.look import NO_COLOUR, OWN_THEMES, Look
from orchestrator.tui.model import Reading
from orchestrator.tui.pages.header import header
from orchestrator.tui.prefs import Prefs
from orchestrator.tui.views.base import View
from orchestrator.tui.views.run import RunView
from orchestrator.tui.widgets.bars import Header, TabLine

SILENT_S = 5.0  # without an answer from the store for so long, the screen says so

VIEWS = (("run", "1", "Run"),)


class FromFeed(Message):
    """What the feed's thread found."""

    def __init__(self, content: feeding.Message) -> None:
        self.content = content
        super().__init__()


class OrchestrateApp(App[int]):
    """Shows what the store says. Closing it ends nothing but itself."""

    CSS_PATH = "app.tcss"
    TITLE = "orchestrate"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"view('{name}')", title, show=False) for name, key, title in VIEWS),
        Binding("q", "quit", "Quit"),
        Binding("colon", "command_palette", "Commands", show=False, key_display=":"),
        Binding("ctrl+t", "next_theme", "Next theme", show=False),
    ]

    def __init__(
        self,
        store_url: str,
        run_id: str | None,
        hosts_file: Path,
        prefs: Prefs,
        *,
        no_color: bool = False,
        view: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        for theme in OWN_THEMES:
            self.register_theme(theme)
        self.prefs = prefs
        self.clock = clock
        self.hosts_file = hosts_file
        self.theme = NO_COLOUR if no_color or self.no_color else prefs.theme_among(self.available_themes)
        self.look = Look.of(self)
        self.first_view = view or prefs.view
        self.reading = Reading()
        self.durations = Durations()
        self.verdict = "none yet"
        self.feed = Feed(store_url, run_id, self._post)
        self.head = Header(self.look, id="header")
        self.tabs = TabLine(self.look, VIEWS, id="tabs")
        self.run_view = RunView(self.look, id="run")
        self._trouble = ""
        self._filters.append(_StripColour(self))

    @property
    def views(self) -> list[View]:
        return list(self.query(View))

    @property
    def active_view(self) -> View:
        return self.query_one(f"#{self.tabs.active}", View)

    def compose(self) -> ComposeResult:
        yield self.head
        yield Static(id="banner", markup=False)
        yield self.tabs
        with ContentSwitcher(id="views", initial="run"):
            yield self.run_view
        yield Footer()

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self._dress())
        self.action_view(self.first_view)
        self.feed.start()
        self.set_interval(1.0, self._tick)

    def on_unmount(self) -> None:
        self.prefs.theme = self.theme if self.theme != NO_COLOUR else self.prefs.theme
        self.prefs.view = self.tabs.active
        self.prefs.save()
        self.feed.stop()

    # What the feed says

    def _post(self, content: feeding.Message) -> None:
        """Called from the feed's thread."""
        self.post_message(FromFeed(content))

    @on(FromFeed)
    def _from_feed(self, message: FromFeed) -> None:
        content, now = message.content, self.clock()
        if isinstance(content, feeding.Update):
            self.reading, self.durations = content.reading, content.durations
            for view in self.views:
                view.show(content, now)
            self._show_head(now)
        elif isinstance(content, feeding.Log):
            self.run_view.show_log(content)
        elif isinstance(content, feeding.TaskDetail):
            self.run_view.show_detail(content, now)
        elif isinstance(content, feeding.Lists):
            for view in self.views:
                view.show_lists(content, now)
        else:
            self._trouble = content.sentence
            self._show_banner()

    def _show_head(self, now: float) -> None:
        self.head.show(header(self.reading, self.durations, self.verdict, now))

    def _show_banner(self) -> None:
        silent = time.monotonic() - self.feed.beat
        text = self._trouble or (
            f"the store has not answered for {silent:.0f} s; what you see is from before" if silent > SILENT_S else ""
        )
        banner = self.query_one("#banner", Static)
        banner.update(text)
        banner.set_class(bool(text), "-shown")

    def _tick(self) -> None:
        now = self.clock()
        self._show_banner()
        if self.reading.run is not None and self.reading.run.state.active:
            self._show_head(now)
        self.active_view.tick(now)

    @on(RunView.WantLog)
    def _want_log(self, message: RunView.WantLog) -> None:
        self.feed.show_log(message.task_key)

    @on(RunView.WantDetail)
    def _want_detail(self, message: RunView.WantDetail) -> None:
        self.feed.show_task(message.task_key)

    # Views and themes

    def action_view(self, name: str) -> None:
        if not any(name == known for known, _, _ in VIEWS):
            name = "run"
        self.tabs.activate(name)
        self.query_one("#views", ContentSwitcher).current = name
        self.active_view.focus_first()

    @on(TabLine.Chosen, "#tabs")
    def _tab_chosen(self, event: TabLine.Chosen) -> None:
        self.action_view(event.name)

    def action_next_theme(self) -> None:
        from orchestrator.tui.look import OFFERED

        at = OFFERED.index(self.theme) if self.theme in OFFERED else -1
        self.theme = OFFERED[(at + 1) % len(OFFERED)]

    def _dress(self) -> None:
        self.look = Look.of(self)
        for part in (self.head, self.tabs):
            part.look = self.look
        self.head.show(self.head.segments, anew=True)
        self.tabs.redraw()
        for view in self.views:
            view.dress(self.look)


class _StripColour(NoColor):
    """Takes every colour away while the no-colour theme is on; bold, underline and reverse stay."""

    def __init__(self, app: OrchestrateApp) -> None:
        super().__init__()
        self._app = app

    @property
    def enabled(self) -> bool:
        return self._app.theme == NO_COLOUR

    @enabled.setter
    def enabled(self, value: bool) -> None:
        """The theme decides."""
