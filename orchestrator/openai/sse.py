"""Server-sent events from raw bytes, whatever the network did to the chunk borders."""

from __future__ import annotations

DONE = "[DONE]"
MAX_EVENT = 64 << 20  # bytes; SGLang repeats the whole output in each event, and no output is that long
_BOM = b"\xef\xbb\xbf"


class SseSplitter:
    """Turns bytes into the `data` fields of complete events (WHATWG event stream rules).

    Lines may end with CR, LF or CRLF, a chunk may end anywhere (also inside a UTF-8 character or between CR
    and LF), comments and unknown fields are skipped, several `data` lines of one event join with a newline.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[str] = []
        self._at_start = True
        self._after_cr = False
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that this chunk completes, in order; ValueError when one grows without end."""
        self._size = self._size + len(chunk) if b"\n" not in chunk else 0
        if self._size > MAX_EVENT:
            raise ValueError(f"the stream carried a line of more than {MAX_EVENT >> 20} MiB")
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        buffer = self._tail + chunk
        if self._at_start:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._tail = buffer
                return []
            buffer = buffer.removeprefix(_BOM)
            self._at_start = False
        self._after_cr = buffer.endswith(b"\r")
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._tail = buffer.split(b"\n")
        events: list[str] = []
        for line in lines:
            self._line(line, events)
        return events

    def _line(self, line: bytes, events: list[str]) -> None:
        if not line:
            if self._data:
                events.append("\n".join(self._data))
                self._data = []
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
