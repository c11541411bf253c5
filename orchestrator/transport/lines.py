"""Turns the byte pieces that a channel delivers into whole lines while they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class LineSplitter:
    """Feed bytes, get each finished line once. A carriage return (progress bars) also ends a line."""

    def __init__(self, emit: Callable[[str], None] | None) -> None:
        self._emit = emit
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._open = ""
        self.parts: list[str] = []
        self.size = 0  # bytes so far

    def feed(self, data: bytes, *, final: bool = False) -> None:
        self.size += len(data)
        text = self._decode(data, final)
        self.parts.append(text)
        if self._emit is None:
            return
        *whole, self._open = (self._open + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in whole:
            self._emit(line)
        if final and self._open:
            self._emit(self._open)
            self._open = ""

    @property
    def text(self) -> str:
        return "".join(self.parts)
