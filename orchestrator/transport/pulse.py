"""Asks the host for a sign of life at fixed intervals, and closes a connection that stays silent."""

from __future__ import annotations

import contextlib
import threading

import paramiko


class Pulse:
    """A daemon thread per connection: every `interval_s` a keepalive that wants an answer within `patience_s`.

    TCP keepalive alone misses a frozen sshd and everything behind a jump host; an unanswered request does not.
    """

    def __init__(self, transport: paramiko.Transport, interval_s: float, patience_s: float) -> None:
        self._transport = transport
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self.silent = False
        self._thread = threading.Thread(target=self._beat, name="ssh-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def alive(self) -> bool:
        """Ask once, now. False when the host does not answer in time; the connection is closed then."""
        with self._turn:
            if not self._transport.is_active():
                return False
            guard = threading.Timer(self._patience_s, self._give_up)
            guard.daemon = True
            guard.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return False
            finally:
                guard.cancel()
            return self._transport.is_active()

    def _give_up(self) -> None:
        self.silent = True
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            # close() waits for the reader, which may hang on a dead link: the socket goes first.
            self._transport.sock.close()
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._transport.close()

    def _beat(self) -> None:
        while not self._stop.wait(self._interval_s):
            if not self.alive():
                return
