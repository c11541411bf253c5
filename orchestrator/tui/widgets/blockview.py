"""A page of blocks on the screen, with vim keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from orchestrator.tui.blocks import Block, Diff, Heading, Line, Pairs, Para, Table, plain_lines
from orchestrator.tui.look import Look
from orchestrator.tui.widgets.scrolling import Scrolled
from orchestrator.tui.words import Tone

_DIFF_TONES = {"+": Tone.GOOD, "-": Tone.BAD, "@": Tone.BUSY}


class BlockView(Scrolled):
    """Shows blocks; draws again only when they differ from those on screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy", "Copy this page", show=False),
    ]

    def __init__(self, look: Look, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.look = look
        self.blocks: Sequence[Block] = ()
        self._static = Static()

    def compose(self) -> ComposeResult:
        yield self._static

    def show(self, blocks: Sequence[Block], *, anew: bool = False) -> None:
        if anew or list(blocks) != list(self.blocks):
            self.blocks = blocks
            self._static.update(rendered(blocks, self.look))

    def action_copy(self) -> None:
        lines = list(plain_lines(self.blocks))
        self.app.copy_to_clipboard("\n".join(lines))
        self.app.notify(f"{len(lines)} lines copied")


def rendered(blocks: Sequence[Block], look: Look) -> RenderableType:
    parts: list[RenderableType] = []
    for block in blocks:
        if isinstance(block, Heading) and parts:
            parts.append(Text(""))
        parts.append(_one(block, look))
    return Group(*parts)


def styled(parts: Line, look: Look) -> Text:
    text = Text()
    for part in parts:
        text.append(part.text, look.tones[part.tone])
    return text


def _one(block: Block, look: Look) -> RenderableType:
    if isinstance(block, Heading):
        return Text(block.text, look.tones[Tone.STRONG] + look.tones[Tone.BUSY])
    if isinstance(block, Para):
        return styled(block.parts, look)
    if isinstance(block, Pairs):
        return _pairs(block, look)
    if isinstance(block, Table):
        return _table(block, look)
    assert isinstance(block, Diff)
    return Text("\n").join(Text(item, look.tones[_DIFF_TONES.get(item[:1], Tone.PLAIN)]) for item in block.lines)


def _pairs(block: Pairs, look: Look) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style=look.tones[Tone.DIM], min_width=9, max_width=24, overflow="fold")
    grid.add_column(overflow="fold")
    for label, value in block.rows:
        grid.add_row(Text(label), styled(value, look))
    return grid


def _table(block: Table, look: Look) -> RichTable:
    head = look.tones[Tone.DIM] + Style(underline=True)
    table = RichTable(box=None, padding=(0, 2, 0, 0), header_style=head, pad_edge=False)
    for column in block.columns:
        table.add_column(Text(column), justify="right" if column in block.right else "left", overflow="fold")
    for row in block.rows:
        table.add_row(*(Text(cell.text, look.tones[cell.tone]) for cell in row))
    return table
