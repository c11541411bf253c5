"""Themes, and what a tone looks like in the theme in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color, ColorParseError
from textual.filter import LineFilter, NoColor
from textual.theme import Theme

from orchestrator.tui.words import Tone

NO_COLOUR = "no-colour"
DEFAULT_THEME = "textual-dark"
OFFERED = (
    "textual-dark",
    "textual-light",
    "high-contrast",
    "high-contrast-light",
    "ansi-dark",
    "ansi-light",
    NO_COLOUR,
)

_HIGH_CONTRAST = Theme(
    name="high-contrast", dark=True, primary="#ffff00", secondary="#00ffff", accent="#ffff00", foreground="#ffffff",
    background="#000000", surface="#000000", panel="#000000", boost="#000000", success="#00ff00", warning="#ffd700",
    error="#ff8080", text_alpha=1.0,
    variables={"text-success": "#00ff00", "text-warning": "#ffd700", "text-error": "#ff8080",
               "text-primary": "#00ffff", "text-accent": "#ffff00", "border": "#ffffff",
               "block-cursor-background": "#ffff00", "block-cursor-foreground": "#000000",
               "footer-key-foreground": "#ffff00", "footer-description-foreground": "#ffffff"},
)  # fmt: skip
_HIGH_CONTRAST_LIGHT = Theme(
    name="high-contrast-light", dark=False, primary="#00008b", secondary="#000000", accent="#00008b",
    foreground="#000000", background="#ffffff", surface="#ffffff", panel="#ffffff", boost="#ffffff",
    success="#004d00", warning="#663c00", error="#8b0000", text_alpha=1.0,
    variables={"text-success": "#004d00", "text-warning": "#663c00", "text-error": "#8b0000",
               "text-primary": "#00008b", "text-accent": "#00008b", "border": "#000000",
               "block-cursor-background": "#00008b", "block-cursor-foreground": "#ffffff",
               "footer-key-foreground": "#00008b", "footer-description-foreground": "#000000"},
)  # fmt: skip
CURSOR = "#ffff01"  # of the theme without colours only: what has this background is shown reversed
_NO_COLOUR = replace(  # a filter takes its colours away
    _HIGH_CONTRAST,
    name=NO_COLOUR,
    variables={
        **_HIGH_CONTRAST.variables, "block-cursor-background": CURSOR, "block-cursor-blurred-background": CURSOR,
    },
)  # fmt: skip
_CHOSEN, _REVERSE = RichColor.parse(CURSOR), Style(reverse=True)
OWN_THEMES = (_HIGH_CONTRAST, _HIGH_CONTRAST_LIGHT, _NO_COLOUR)

_VARIABLES = {
    Tone.GOOD: "text-success",
    Tone.BAD: "text-error",
    Tone.WARN: "text-warning",
    Tone.BUSY: "text-primary",
}
DIM_SHARE = 0.3  # how far dim text moves towards the background


class Look:
    """Rich styles for tones, cursor and matches; made anew when the theme changes."""

    def __init__(self, tones: Mapping[Tone, Style], cursor: Style, match: Style) -> None:
        self.tones = tones
        self.cursor = cursor
        self.match = match

    @staticmethod
    def of(app: App[Any]) -> Look:
        variables = app.get_css_variables()
        if app.theme == NO_COLOUR:
            return _without_colour()
        tones = {tone: Style(color=_hex(variables.get(name))) for tone, name in _VARIABLES.items()}
        tones[Tone.PLAIN] = Style()
        tones[Tone.STRONG] = Style(bold=True)
        tones[Tone.DIM] = _dim(variables)
        tones[Tone.BAD] += Style(bold=True)
        tones[Tone.BUSY] += Style(bold=True)
        cursor = Style(
            color=_hex(variables.get("block-cursor-foreground")) or _on(variables.get("block-cursor-background")),
            bgcolor=_hex(variables.get("block-cursor-background")),
            bold=True,
        )
        return Look(tones, cursor, Style(reverse=True, bold=True))


def _without_colour() -> Look:
    tones = {tone: Style() for tone in Tone} | {
        Tone.STRONG: Style(bold=True), Tone.BAD: Style(bold=True, underline=True), Tone.BUSY: Style(bold=True),
    }  # fmt: skip
    return Look(tones, Style(reverse=True), Style(reverse=True, bold=True))


def _dim(variables: Mapping[str, str]) -> Style:
    front, back = _parse(variables.get("foreground")), _parse(variables.get("background"))
    if front is None or back is None or front.ansi is not None or back.ansi is not None:
        return Style(dim=True)
    return Style(color=front.blend(back, DIM_SHARE).rich_color)


def _hex(value: str | None) -> str | None:
    colour = _parse(value)
    return None if colour is None else colour.rich_color.name


def _on(value: str | None) -> str | None:
    """Black or white, whichever reads on this background."""
    colour = _parse(value)
    return None if colour is None else colour.get_contrast_text(1.0).rich_color.name


def _parse(value: str | None) -> Color | None:
    if not value or value.startswith("auto"):
        return None
    try:
        return Color.parse(value.split()[0])
    except ColorParseError:
        return None


class _WithoutColour(LineFilter):
    """A filter that works while the theme without colours is on."""

    def __init__(self, app: App[Any]) -> None:
        super().__init__()
        self._app = app

    @property
    def enabled(self) -> bool:
        return self._app.theme == NO_COLOUR

    @enabled.setter
    def enabled(self, value: bool) -> None:
        """The theme decides."""


class ReverseChosen(_WithoutColour):
    """What a widget of Textual shows as chosen by its background alone is reversed; comes before any other filter."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style + _REVERSE if style and style.bgcolor == _CHOSEN else style, control)
            for text, style, control in segments
        ]


class StripColour(_WithoutColour, NoColor):
    """Takes every colour away; bold, underline and reverse stay."""
