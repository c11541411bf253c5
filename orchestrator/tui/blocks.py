"""What a page says, without saying how it looks: the screen and `--plain` render the same blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.tui.words import Tone, one_line


@dataclass(frozen=True)
class Span:
    """A piece of text with its meaning; harmless to a terminal whatever it was made from."""

    text: str
    tone: Tone = Tone.PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", one_line(self.text))


Line = tuple[Span, ...]


def line(*parts: str | Span) -> Line:
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts)


def text_of(parts: Line) -> str:
    return "".join(part.text for part in parts)


@dataclass(frozen=True)
class Heading:
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", one_line(self.text))


@dataclass(frozen=True)
class Para:
    """One line of text, wrapped where the screen ends."""

    parts: Line


@dataclass(frozen=True)
class Pairs:
    """Labels with their values."""

    rows: tuple[tuple[str, Line], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple((one_line(label), value) for label, value in self.rows))


@dataclass(frozen=True)
class Table:
    """Rows under column heads. `right` names the columns whose figures end at the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Span, ...], ...]
    right: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(one_line(column) for column in self.columns))


@dataclass(frozen=True)
class Diff:
    """A unified diff, line by line."""

    lines: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(one_line(item) for item in self.lines))


Block = Heading | Para | Pairs | Table | Diff


@dataclass
class Page:
    """Blocks in reading order."""

    blocks: list[Block] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.blocks.append(Heading(text))

    def say(self, *parts: str | Span) -> None:
        self.blocks.append(Para(line(*parts)))

    def pairs(self, *rows: tuple[str, str | Span | Line]) -> None:
        self.blocks.append(
            Pairs(tuple((label, value if isinstance(value, tuple) else line(value)) for label, value in rows))
        )

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Span]], right: Sequence[str] = ()) -> None:
        cells = tuple(tuple(cell if isinstance(cell, Span) else Span(cell) for cell in row) for row in rows)
        self.blocks.append(Table(tuple(columns), cells, frozenset(right)))


def plain_lines(blocks: Sequence[Block]) -> Iterator[str]:
    """The blocks as lines for a screen reader or a pipe: every cell of a table with the name of its column."""
    for block in blocks:
        if isinstance(block, Heading):
            yield f"== {block.text} =="
        elif isinstance(block, Para):
            yield text_of(block.parts)
        elif isinstance(block, Pairs):
            yield from (f"{label}: {text_of(value)}" for label, value in block.rows)
        elif isinstance(block, Table):
            yield from (_row(block.columns, row) for row in block.rows)
        else:
            yield from block.lines


def _row(columns: Sequence[str], cells: Sequence[Span]) -> str:
    """A column without a name only draws what another one says in words."""
    named = zip(columns, cells, strict=True)
    return "; ".join(f"{name}: {cell.text}" for name, cell in named if name and cell.text)
