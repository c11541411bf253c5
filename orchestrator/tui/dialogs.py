"""Questions and help over the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Select, Static
from textual.widgets.input import Selection

from orchestrator.tui.actions import Answers, Field, Proposal, still_missing
from orchestrator.tui.look import Look
from orchestrator.tui.widgets.scrolling import Scrolled
from orchestrator.tui.words import Tone, one_line

LOW_ROWS = 32  # with fewer the screen is low: no room for blank rows
HELP_FRAME = 4  # rows of the help that are not text: border, title, foot


class FormScreen(ModalScreen[dict[str, str] | None]):
    """Fields to fill in; gives back the answers, or None when it is left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]

    def __init__(self, title: str, fields: Sequence[Field], verb: str) -> None:
        super().__init__()
        self.app.clear_notifications()  # remarks would lie over the question and its buttons
        self.title_text = title
        self.fields = fields
        self.verb = verb

    def compose(self) -> ComposeResult:
        self.set_class(self.app.size.height < LOW_ROWS, "-low")  # from the first frame on
        with Vertical(id="dialog"):
            yield Label(self.title_text, id="dialog-title", markup=False)
            with VerticalScroll(id="dialog-body", can_focus=False):
                yield from self.body()
                for field in self.fields:
                    yield from _widgets(field)
                yield from self.foot()
            yield Label("", id="missing", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Leave it", id="leave", compact=True)
                yield Button(self.verb, id="do", variant="warning", compact=True)

    def body(self) -> ComposeResult:
        """What stands above the fields."""
        yield from ()

    def foot(self) -> ComposeResult:
        """What stands below the fields."""
        yield from ()

    def on_mount(self) -> None:
        first = next((field for field in self.fields if not field.choices), None)
        self.set_focus(self.query_one(f"#field-{first.name}" if first else "#leave"))  # at once: a key may wait
        self.look_again()

    @property
    def answers(self) -> dict[str, str]:
        found = {}
        for field in self.fields:
            widget = self.query_one(f"#field-{field.name}")
            found[field.name] = str(widget.value).strip() if isinstance(widget, Select | Input) else ""
        return found

    @on(Input.Changed)
    @on(Select.Changed)
    def _changed(self) -> None:
        self.look_again()

    def look_again(self) -> None:
        """Brings what depends on the answers up to date."""
        missing = still_missing(self.fields, self.answers)
        self.query_one("#missing", Label).update(missing)
        self.query_one("#do", Button).disabled = bool(missing)

    @on(Input.Submitted)
    @on(Button.Pressed, "#do")
    def _do(self) -> None:
        if not still_missing(self.fields, self.answers):
            self.dismiss(self.answers)

    @on(Button.Pressed, "#leave")
    def action_leave(self) -> None:
        self.dismiss(None)


class ConfirmScreen(FormScreen):
    """Says exactly what will happen and which command it is, before anything does."""

    def __init__(self, proposal: Proposal, shown: Callable[[Answers], str], look: Look) -> None:
        super().__init__(proposal.title, proposal.fields, proposal.verb)
        self.proposal = proposal
        self._shown = shown
        self._look = look

    def body(self) -> ComposeResult:
        for effect in self.proposal.effects:
            yield Static(Text(f"• {one_line(effect)}"), classes="effect")

    def foot(self) -> ComposeResult:
        yield Static(id="command", markup=False)

    def look_again(self) -> None:
        super().look_again()
        text = Text("runs: ", self._look.tones[Tone.DIM])
        text.append(one_line(self._shown(self.answers)), self._look.tones[Tone.STRONG])
        self.query_one("#command", Static).update(text)


def _widgets(field: Field) -> ComposeResult:
    yield Label(field.label, classes="field-label", markup=False)
    if field.choices:
        options = [(choice, choice) for choice in field.choices]
        yield Select(
            options, value=field.value or field.choices[0], allow_blank=False, id=f"field-{field.name}", compact=True
        )
    else:
        # Selected from the start, not by the focus, which comes after keys that were typed ahead.
        entry = Input(field.value, id=f"field-{field.name}", compact=True, select_on_focus=False)
        entry.selection = Selection(0, len(field.value))
        yield entry


class HelpScreen(ModalScreen[None]):
    """The keys that work where the keyboard is, then those of the view and of the program."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close")]

    def __init__(self, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]], look: Look) -> None:
        super().__init__()
        self._groups = groups
        self._look = look

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="help"):
            yield Label("Keys", id="dialog-title")
            with Scrolled(id="dialog-body"):
                yield Static(self._text())
            yield Label("Esc closes", id="missing")

    def on_resize(self) -> None:
        """As high as its text, and never higher than the screen."""
        lines = self._text().plain.count("\n") + 1
        self.query_one("#dialog-body").styles.height = max(1, min(lines, self.app.size.height - HELP_FRAME))

    def _text(self) -> Text:
        text = Text()
        for title, keys in self._groups:
            text.append(f"{title}\n", self._look.tones[Tone.STRONG] + self._look.tones[Tone.BUSY])
            for key, what in keys:
                text.append(f"  {key:<26}", self._look.tones[Tone.STRONG])
                text.append(f"{what}\n")
            text.append("\n")
        text.rstrip()
        return text
