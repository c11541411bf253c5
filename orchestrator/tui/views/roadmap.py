"""The roadmap view: the document that `orchestrate roadmap` writes, rendered."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Markdown

from orchestrator.tui.feed import Roadmap, Update
from orchestrator.tui.look import Look
from orchestrator.tui.views.base import View
from orchestrator.tui.widgets.scrolling import Scrolled


class Reader(Scrolled):
    """The document, to be scrolled."""


class RoadmapView(View):
    """Rendered when it is opened, and again when tasks moved while it is open."""

    class Wanted(Message):
        """The roadmap of now is to be sent."""

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(look, id=id)
        self.document = Markdown("Reading the store …", open_links=False)
        self.reader = Reader(self.document, id="roadmap-reader")
        self._stale = True
        self._text = ""

    def compose(self) -> ComposeResult:
        yield self.reader

    def show(self, update: Update, now: float) -> None:
        self._stale = self._stale or update.fresh or bool(update.delta.tasks) or update.delta.run_changed

    def tick(self, now: float) -> None:
        if self._stale and self.display:
            self._stale = False
            self.post_message(self.Wanted())

    def show_roadmap(self, roadmap: Roadmap) -> None:
        text = roadmap.markdown or f"There is no roadmap yet: {roadmap.problem}"
        if text != self._text:
            self._text = text
            self.document.update(text)

    def focus_first(self) -> None:
        self.screen.set_focus(self.reader)
        self._stale = True
        self.tick(0.0)
