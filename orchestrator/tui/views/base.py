"""What every view is: a container that shows readings and knows its own page in blocks."""

from __future__ import annotations

from textual.containers import Vertical

from orchestrator.tui.feed import Lists, Update
from orchestrator.tui.look import Look


class View(Vertical):
    """Subclasses override what they need; all of them are projections of what they are shown."""

    def __init__(self, look: Look, *, id: str) -> None:
        super().__init__(id=id)
        self.look = look

    def show(self, update: Update, now: float) -> None:
        """The run moved or another one is shown."""

    def show_lists(self, lists: Lists, now: float) -> None:
        """Runs or to-dos changed."""

    def tick(self, now: float) -> None:
        """A second passed."""

    def dress(self, look: Look) -> None:
        """Another theme."""
        self.look = look

    def give_room_back(self) -> None:
        """Ends the zoom of a part: what a key opens now would be hidden behind it."""
        if self.screen.maximized is not None:
            self.screen.minimize()

    def focus_first(self) -> None:
        """Gives the keyboard to the view's main part."""
