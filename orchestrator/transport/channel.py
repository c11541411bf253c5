"""Runs one command on a Paramiko channel: streams both outputs, feeds stdin, and never takes a lost link for an end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import paramiko

from orchestrator.transport.base import OnLine, Stream
from orchestrator.transport.lines import LineSplitter

PIECE = 32 * 1024
MAX_OUTPUT = 128 << 20  # bytes; the longest that is read on purpose is a file of 64 MiB in base64
LINGER_S = 1.0  # how long to wait for output after the exit status when a background child keeps the pipes open


class Dropped(Exception):
    """The channel ended without an exit status."""


class Expired(Exception):
    """The time-out passed while the command still ran."""


class Flooded(Exception):
    """The command printed more than MAX_OUTPUT, and may never end."""


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


def execute(
    channel: paramiko.Channel,
    line: str,
    stdin: bytes,
    timeout_s: float | None,
    on_line: OnLine | None,
) -> Outcome:
    """Raises Dropped, Expired or Flooded; the caller knows what they mean for the command's effect."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        channel.exec_command(line)
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Dropped from error
    channel.settimeout(1.0)
    out = LineSplitter(_emitter(on_line, "stdout"))
    err = LineSplitter(_emitter(on_line, "stderr"))
    waiting = memoryview(stdin)
    stdin_open = True
    exited_at: float | None = None
    while True:
        moved = _receive(channel.recv_ready, channel.recv, out)
        moved |= _receive(channel.recv_stderr_ready, channel.recv_stderr, err)
        if stdin_open:
            waiting, stdin_open, sent = _send(channel, waiting)
            moved |= sent
        if out.size + err.size > MAX_OUTPUT:
            raise Flooded
        exited = channel.exit_status_ready()
        if deadline is not None and time.monotonic() > deadline and not (exited or channel.closed):
            raise Expired  # also while it prints without a pause
        if moved:
            continue
        if exited:
            exited_at = exited_at or time.monotonic()
            if channel.eof_received or channel.closed or time.monotonic() - exited_at > LINGER_S:
                break
        elif channel.closed:
            break
        channel.status_event.wait(0.01)
        if exited_at is not None:
            time.sleep(0.005)  # status_event stays set; do not spin while the last output is on its way
    for _ in range(2):  # what arrived between the last look and the end
        while _receive(channel.recv_ready, channel.recv, out) | _receive(
            channel.recv_stderr_ready, channel.recv_stderr, err
        ):
            if out.size + err.size > MAX_OUTPUT:
                raise Flooded
    out.feed(b"", final=True)
    err.feed(b"", final=True)
    if channel.exit_status < 0:
        raise Dropped
    return Outcome(channel.exit_status, out.text, err.text)


def _emitter(on_line: OnLine | None, stream: Stream) -> Callable[[str], None] | None:
    return None if on_line is None else lambda text: on_line(stream, text)


def _receive(ready: Callable[[], bool], read: Callable[[int], bytes], into: LineSplitter) -> bool:
    if not ready():
        return False
    try:
        data = read(PIECE)
    except OSError:  # the channel's own time-out: nothing after all
        return False
    into.feed(data)
    return bool(data)


def _send(channel: paramiko.Channel, waiting: memoryview) -> tuple[memoryview, bool, bool]:
    """Feed stdin as far as the window allows: (what remains, still open, anything moved)."""
    if not waiting:
        with contextlib.suppress(OSError, EOFError):
            channel.shutdown_write()
        return waiting, False, False
    if not channel.send_ready():
        return waiting, True, False
    try:
        count = channel.send(bytes(waiting[:PIECE]))
    except TimeoutError:
        return waiting, True, False
    except OSError:  # the command closed its stdin without reading all of it, as head does
        return memoryview(b""), False, False
    return waiting[count:], True, count > 0
