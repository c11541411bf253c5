"""The application: one feed of the store, six views of it, and the keys that lead to actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Literal

from textual import events, on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer, Input, Static

from orchestrator.errors import OrchestrateError
from orchestrator.tui import feed as feeding
from orchestrator.tui import reasons
from orchestrator.tui.actions import ACTIONS
from orchestrator.tui.benchreading import BenchReading
from orchestrator.tui.dialogs import LOW_ROWS, HelpScreen
from orchestrator.tui.eta import Durations, seconds_left
from orchestrator.tui.feed import Feed
from orchestrator.tui.look import NO_COLOUR, OFFERED, OWN_THEMES, Look, ReverseChosen, StripColour
from orchestrator.tui.model import Reading
from orchestrator.tui.operate import CommandEnded, Operator, save_log
from orchestrator.tui.pages.header import header
from orchestrator.tui.pages.help import help_groups
from orchestrator.tui.prefs import Prefs
from orchestrator.tui.process import Program
from orchestrator.tui.views.base import View
from orchestrator.tui.views.bench import BenchView
from orchestrator.tui.views.history import HistoryView
from orchestrator.tui.views.host import HostView
from orchestrator.tui.views.roadmap import RoadmapView
from orchestrator.tui.views.run import RunView
from orchestrator.tui.views.todo import TodoView
from orchestrator.tui.widgets.bars import Header, TabLine
from orchestrator.tui.widgets.logview import LogView
from orchestrator.tui.words import one_line

ETA_EVERY_S = 10.0
SILENT_S = 5.0  # without an answer from the store for so long, the screen says so

VIEWS = (
    ("run", "1", "Run"),
    ("host", "2", "Host"),
    ("bench", "3", "Bench"),
    ("roadmap", "4", "Roadmap"),
    ("history", "5", "History"),
    ("todo", "6", "To-do"),
)
LISTING = ("history", "todo")  # views that show more of the store than one run
Severity = Literal["information", "warning", "error"]


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
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW_ROWS, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"view('{name}')", title, show=False) for name, key, title in VIEWS),
        *(Binding(key, f"act('{name}')", title, show=False) for name, (key, title, _) in ACTIONS.items()),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("z", "zoom", "Zoom the part in use", show=False),
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
        self.animation_level = "none"  # what moves by and by costs frames, and a slow line shows each of them
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
        self.bench = BenchReading()
        self.operator = Operator(self, Program(hosts_file, store_url))
        self.feed = Feed(store_url, run_id, self._post)
        self.head = Header(self.look, id="header")
        self.tabs = TabLine(self.look, VIEWS, id="tabs")
        self.banner = Static(id="banner", markup=False)
        self.run_view = RunView(self.look, id="run")
        self.run_view.share, self.run_view.log_view.wrapped = prefs.share, prefs.wrap
        self.history_view = HistoryView(self.look, id="history")
        self.roadmap_view = RoadmapView(self.look, id="roadmap")
        self.views: dict[str, View] = {
            "run": self.run_view,
            "host": HostView(self.look, id="host"),
            "bench": BenchView(self.look, id="bench"),
            "roadmap": self.roadmap_view,
            "history": self.history_view,
            "todo": TodoView(self.look, id="todo"),
        }
        self.switcher = ContentSwitcher(*self.views.values(), id="views", initial="run")
        self._trouble = ""
        self._banner_text = ""
        self._left: float | None = None
        self._estimated_at = 0.0
        self._filters = [ReverseChosen(self), *self._filters, StripColour(self)]

    @property
    def active_view(self) -> View:
        return self.views[self.tabs.active]

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.banner
        yield self.tabs
        yield self.switcher
        yield Footer()

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self._dress())
        self.action_view(self.first_view)
        self.feed.start()
        self.set_interval(1.0, self._tick)

    def on_unmount(self) -> None:
        self.prefs.theme = self.theme if self.theme != NO_COLOUR else self.prefs.theme
        self.prefs.view = self.tabs.active
        self.prefs.share, self.prefs.wrap = self.run_view.share, self.run_view.log_view.wrapped
        self.prefs.save()
        self.feed.stop()

    async def on_event(self, event: events.Event) -> None:
        """A key has done its work before the next one is looked at.

        Else keys that were typed while the screen was busy reach the part that had the keyboard before: what follows
        `/` or `a` would be taken for commands, and what follows Tab would land in the field before.
        """
        if isinstance(event, events.Key) and not event.is_forwarded and self.screen.maximized is None:
            field = self.focused
            if isinstance(field, Input) and event.is_printable and event.character:
                field.replace(event.character, *field.selection)
                return
            for priority in (True, False):
                if await self._check_bindings(event.key, priority=priority):
                    return
        await super().on_event(event)

    # What the feed says

    def _post(self, content: feeding.Message) -> None:
        """Called from the feed's thread."""
        self.post_message(FromFeed(content))

    @on(FromFeed)
    def _from_feed(self, message: FromFeed) -> None:
        content, now = message.content, self.clock()
        if isinstance(content, feeding.Update):
            self.reading, self.durations, self.bench = content.reading, content.durations, content.bench
            for view in self.views.values():
                view.show(content, now)
            self._show_head(now)
        elif isinstance(content, feeding.Log):
            self.run_view.show_log(content)
        elif isinstance(content, feeding.TaskDetail):
            self.run_view.show_detail(content, now)
        elif isinstance(content, feeding.Lists):
            for view in self.views.values():
                view.show_lists(content, now)
        elif isinstance(content, feeding.Comparison):
            self.history_view.show_comparison(content)
        elif isinstance(content, feeding.Roadmap):
            self.roadmap_view.show_roadmap(content)
        else:
            self._trouble = content.sentence
            self._show_banner()
            if self.reading.run is None:
                self._show_head(now)

    def _show_head(self, now: float, every: float = 0.0) -> None:
        """The estimate walks through the whole graph, so a mere second is no reason to make a new one."""
        if now - self._estimated_at >= every or now < self._estimated_at:
            self._left, self._estimated_at = seconds_left(self.reading, self.durations, now), now
        self.head.show(header(self.reading, self.durations, self._left, self.bench.sentence, now))

    def _show_banner(self) -> None:
        silent = time.monotonic() - self.feed.beat
        text = self._trouble or (
            f"the store has not answered for {silent:.0f} s; what you see is from before" if silent > SILENT_S else ""
        )
        if text != self._banner_text:
            self._banner_text = text
            self.banner.update(text)
            self.banner.set_class(bool(text), "-shown")

    def _tick(self) -> None:
        now = self.clock()
        self._show_banner()
        if self.reading.run is not None and self.reading.run.state.active:
            self._show_head(now, every=ETA_EVERY_S)
        self.head.settle()
        self.active_view.tick(now)

    @on(RunView.WantLog)
    def _want_log(self, message: RunView.WantLog) -> None:
        self.feed.show_log(message.task_key)

    @on(RunView.WantDetail)
    def _want_detail(self, message: RunView.WantDetail) -> None:
        self.feed.show_task(message.task_key)

    @on(RunView.WantPlan)
    def _want_plan(self) -> None:
        self.operator.ask_plan()

    @on(RoadmapView.Wanted)
    def _want_roadmap(self) -> None:
        self.feed.show_roadmap()

    @on(HistoryView.Show)
    def _show_run(self, message: HistoryView.Show) -> None:
        self.feed.show_run(message.run_id)
        self.action_view("run")

    @on(HistoryView.Compare)
    def _compare(self, message: HistoryView.Compare) -> None:
        self.feed.show_comparison(message.old, message.new)

    @on(LogView.Save)
    def _save_log(self, message: LogView.Save) -> None:
        run, task = self.reading.run, self.run_view.selected_task
        try:
            folder = self.hosts_file.resolve().parent
            path = save_log(message.text, run.id if run else None, task.key if task else None, folder)
        except OSError as error:
            self.say(f"the log could not be written: {error}", "error")
            return
        self.copy_to_clipboard(message.text)
        self.say(f"copied, and saved as {path}")

    # Actions

    def say(self, text: str, severity: Severity = "information", timeout: float = 6) -> None:
        """A remark in the corner; the text may come from anywhere."""
        self.notify(one_line(text), severity=severity, timeout=timeout, markup=False)

    def action_act(self, name: str) -> None:
        self.operator.propose(name)

    @on(CommandEnded)
    def _command_ended(self, message: CommandEnded) -> None:
        self.operator.ended(message.ended)
        self.feed.look_again()

    @on(TodoView.Change)
    def _change_todos(self, message: TodoView.Change) -> None:
        self._write_todos(message.change, message.said)

    @work(thread=True, group="todos")
    def _write_todos(self, change: reasons.TodoChange, said: str) -> None:
        try:
            reasons.change_todos(self.feed.url, change)
        except OrchestrateError as error:
            self.call_from_thread(self.say, str(error), "error")
            return
        self.feed.look_again()
        self.call_from_thread(self.say, said)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: what is possible now, then views, themes and the rest."""
        for name, key, title in self.operator.available():
            yield SystemCommand(
                f"{title} ({key})", "shows what will happen and asks first", lambda n=name: self.action_act(n)
            )
        for name, key, title in VIEWS:
            yield SystemCommand(f"View: {title} ({key})", "go to this view", lambda n=name: self.action_view(n))
        for theme in OFFERED:
            yield SystemCommand(
                f"Theme: {theme}", "look like this from now on", lambda t=theme: setattr(self, "theme", t)
            )
        yield SystemCommand(
            "Save the log (Y)", "write the log shown to a file and copy it", self.run_view.log_view.action_save
        )
        yield SystemCommand("Keys (?)", "every key that works here", self.action_help)
        yield SystemCommand("Quit (q)", "leave; runs go on", self.action_quit)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(help_groups(self.screen, self.operator), self.look))

    def action_zoom(self) -> None:
        """The part that has the keyboard fills the screen, or gives the room back."""
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif self.focused is not None:
            self.screen.maximize(self.focused)

    # Views and themes

    def action_view(self, name: str) -> None:
        if name not in self.views:
            name = "run"
        self.active_view.give_room_back()
        self.tabs.activate(name)
        self.switcher.current = name
        self.feed.want_lists(name in LISTING)
        self.active_view.tick(self.clock())
        self.active_view.focus_first()

    @on(TabLine.Chosen, "#tabs")
    def _tab_chosen(self, event: TabLine.Chosen) -> None:
        self.action_view(event.name)

    def action_next_theme(self) -> None:
        at = OFFERED.index(self.theme) if self.theme in OFFERED else -1
        self.theme = OFFERED[(at + 1) % len(OFFERED)]

    def _dress(self) -> None:
        self.look = Look.of(self)
        for part in (self.head, self.tabs):
            part.look = self.look
        self.head.show(self.head.segments, anew=True)
        self.tabs.redraw()
        for view in self.views.values():
            view.dress(self.look)
