"""The host view."""

from __future__ import annotations

from textual.app import ComposeResult

from orchestrator.tui.feed import Update
from orchestrator.tui.look import Look
from orchestrator.tui.model import Reading
from orchestrator.tui.pages.host import host_page
from orchestrator.tui.views.base import View
from orchestrator.tui.widgets.blockview import BlockView


class HostView(View):
    """What serves, GPUs, releases, the dead-man timer with its count-down, drift, lock."""

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(look, id=id)
        self.page = BlockView(look, id="host-page")
        self._reading = Reading()

    def compose(self) -> ComposeResult:
        yield self.page

    def show(self, update: Update, now: float) -> None:
        self._reading = update.reading
        self.tick(now)

    def tick(self, now: float) -> None:
        if self.display:
            self.page.show(host_page(self._reading, now))

    def dress(self, look: Look) -> None:
        super().dress(look)
        self.page.look = look
        self.page.show(self.page.blocks, anew=True)

    def focus_first(self) -> None:
        self.screen.set_focus(self.page)
