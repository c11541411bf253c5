"""The program under a pseudo-terminal: keys go in as bytes, and every painted frame is seen when it has come out whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ASKS_SYNC, SAYS_SYNC = b"\x1b[?2026$p", b"\x1b[?2026;2$y"  # "do you know synchronised output?" "yes, it is off now"
FRAME_END = b"\x1b[?2026l"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PtyScreen:
    """Starts `command` on a terminal of its own. The terminal claims synchronised output, so frames have an end."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], size: tuple[int, int] = (160, 50)) -> None:
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )
        os.close(terminal)
        self.seen = bytearray()

    def read(self, patience_s: float) -> bytes:
        """What comes out within the time, b"" for nothing; the terminal's question is answered."""
        if not select.select([self.master], [], [], patience_s)[0]:
            return b""
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:  # the program ended
            raise EOFError(self.seen[-2000:].decode(errors="replace")) from None
        if ASKS_SYNC in data:
            os.write(self.master, SAYS_SYNC)
        self.seen += data
        return data

    def frame_with(self, *texts: str, patience_s: float = 60.0) -> float:
        """Seconds from the program's start to the end of the frame after which all texts have been painted."""
        wanted = [text.encode() for text in texts]
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            self.read(0.1)
            places = [self.seen.find(text) for text in wanted]
            if -1 not in places and self.seen.find(FRAME_END, max(places)) >= 0:
                return time.perf_counter() - self.began
        raise TimeoutError(f"{texts} were not painted; last output: {bytes(self.seen[-400:])!r}")

    def key(self, keys: str, patience_s: float = 60.0) -> float:
        """Seconds from the key to the end of the next frame."""
        while self.read(0.05):  # the screen rests before the key
            pass
        self.seen.clear()
        began = time.perf_counter()
        os.write(self.master, keys.encode())
        while FRAME_END not in self.seen:
            if not self.read(patience_s):
                raise TimeoutError(f"nothing was painted after {keys!r}")
        return time.perf_counter() - began

    def watch(self, seconds: float) -> None:
        """Takes what is painted, so that the program never waits for the terminal."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(left)
        self.seen.clear()

    @property
    def cpu_s(self) -> float:
        """Processor time of the program so far, its own and the kernel's for it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    @property
    def rss_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise OSError(f"process {self.process.pid} says nothing about its memory")

    def close(self) -> None:
        """Hangs up, as a terminal that is closed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGHUP)
        os.close(self.master)
        self.process.wait(60)
