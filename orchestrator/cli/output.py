"""What commands print: one JSON document on stdout, or plain lines and tables; progress always on stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.documents import encode, envelope
from orchestrator.errors import ExitCode

FOLD_ROWS = 500  # longer tables are not folded into the terminal's width: laying them out takes seconds
# C0 and C1 controls but tab and newline, and the marks that reorder text on screen.
CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def plain(text: str) -> str:
    """Text from a host or a user without control characters, so that it cannot drive the terminal."""
    return text.translate(CONTROL)


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "utf-8").lower().replace("-", "").startswith("utf")


class Output:
    """Writes results to stdout and progress to stderr; with json, stdout gets exactly one document."""

    def __init__(self, *, json_mode: bool = False, no_color: bool = False) -> None:
        self.json_mode = json_mode
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows no dash must not end a command
        no_color = no_color or bool(os.environ.get("NO_COLOR"))
        self.no_color = no_color
        self._out = Console(no_color=no_color, highlight=False, soft_wrap=False, markup=False)
        self._err = Console(no_color=no_color, highlight=False, stderr=True, markup=False, soft_wrap=True)
        self._written = False

    @property
    def progress_console(self) -> Console:
        """Where a run shows its progress: stderr."""
        return self._err

    @property
    def interactive(self) -> bool:
        """True when a person can be asked: both ends are terminals and no document is being written."""
        return not self.json_mode and sys.stdin.isatty() and sys.stdout.isatty()

    def line(self, text: str = "", style: str | None = None) -> None:
        """A line of the result (not in JSON mode)."""
        if not self.json_mode:
            self._out.print(Text(plain(text), style=style or ""), soft_wrap=True)

    def note(self, text: str, style: str | None = None) -> None:
        """A line of progress, on stderr in every mode."""
        self._err.print(Text(plain(text), style=style or ""))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
        """A table that fits the terminal; long cells fold, nothing is cut. Without a terminal: one line for each row."""
        if self.json_mode:
            return
        cells = [["" if cell is None else plain(str(cell)) for cell in row] for row in rows]
        if not self._out.is_terminal or len(cells) > FOLD_ROWS:
            self._lines(columns, cells, title)
            return
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        self._out.print(table)

    def _lines(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
        """Aligned plain lines, which programs can cut apart, and which thousands of rows do not slow down."""
        lines = [[" ".join(cell.split()) for cell in row] for row in (columns, *rows)]
        widths = [max(cell_len(row[column]) for row in lines) for column in range(len(columns))]
        text = [title] if title else []
        for row in lines:
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            text.append("  ".join(padded).rstrip())
        self._out.file.write("\n".join(text) + "\n")

    def document(self, code: ExitCode, body: Mapping[str, Any], error: str | None = None) -> None:
        """The command's one JSON document."""
        if not self.json_mode or self._written:
            return
        self._written = True
        sys.stdout.write(encode(envelope(code, body, error), ascii_only=not _is_unicode(sys.stdout.encoding)))
        sys.stdout.flush()

    def error(self, sentence: str) -> None:
        self.note(f"orchestrate: {sentence}", style="bold red")
