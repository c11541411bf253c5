"""The Transport over SSH: one multiplexed connection, opened on first use and again after it was lost."""

from __future__ import annotations

import base64
import contextlib
import io
import posixpath
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

import fabric
import paramiko

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.transport import quoting, upload
from orchestrator.transport.base import (
    CommandFailed,
    CommandResult,
    CommandTimeout,
    ConnectionLost,
    OnLine,
    SudoUnavailable,
)
from orchestrator.transport.channel import MAX_OUTPUT, Dropped, Expired, Flooded, execute
from orchestrator.transport.connect import close_connection, open_connection
from orchestrator.transport.forward import forwarded
from orchestrator.transport.pulse import Pulse
from orchestrator.transport.settings import SshSettings

T = TypeVar("T")
TAIL_LINES = 6
LOST = (EOFError, OSError, paramiko.SSHException)


class SshTransport:
    """See Transport. Safe to use from several threads: every command has a channel of its own."""

    def __init__(self, settings: SshSettings, mask: Callable[[str], str] = str) -> None:
        self.settings = settings
        self._mask = mask
        self._lock = threading.RLock()
        self._connection: fabric.Connection | None = None
        self._pulse: Pulse | None = None
        self._check_back: Callable[[], None] = lambda: None

    @property
    def host(self) -> str:
        return self.settings.name

    def connect(self) -> paramiko.Transport:
        """The live connection, made now if there is none. Raises the HostError family."""
        with self._lock:
            live = self._link()
            if live is not None:
                return live
            self._drop()
            self._connection = open_connection(self.settings)
            link: paramiko.Transport = self._connection.transport
            self._pulse = Pulse(link, self.settings.keepalive_s, self.settings.idle_timeout_s)
            self._pulse.start()
            try:
                self._check_back()
            except BaseException:
                self._drop()
                raise
            return link

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = 60.0,
        sudo: bool = False,
        check: bool = False,
        on_line: OnLine | None = None,
        mask: Sequence[str] = (),
    ) -> CommandResult:
        call_id = uuid.uuid4().hex
        call = quoting.build(
            argv,
            env=env,
            cwd=cwd,
            sudo=sudo and self._use_sudo(argv[0]),
            sudo_password=self._password() if sudo else None,
            secrets=mask,
            call_id=call_id,
        )
        hide = self._hider(mask)
        shown = hide(" ".join(argv))[:200]
        started = time.monotonic()
        emit = None if on_line is None else (lambda stream, text: on_line(stream, hide(text)))
        link = self.connect()
        try:
            with contextlib.closing(self._session(link, shown)) as channel:
                outcome = execute(channel, call.line, call.stdin_head + (stdin or b""), timeout_s, emit)
        except Dropped as error:
            raise self._lost(link, f"while {shown!r} ran; whether it took effect is unknown") from error
        except Expired as error:
            self._stop_call(link, call_id, sudo)
            raise CommandTimeout(
                f"{shown!r} on host {self.host!r} did not end within {timeout_s:g} s and was stopped; "
                "look at the host's load or raise the time-out."
            ) from error
        except Flooded as error:
            self._stop_call(link, call_id, sudo)
            raise OrchestrateError(
                f"{shown!r} on host {self.host!r} printed more than {MAX_OUTPUT >> 20} MiB and was stopped; look there at "
                "what it prints, which may be a login script."
            ) from error
        result = CommandResult(
            tuple(argv), outcome.exit_code, outcome.stdout, outcome.stderr, time.monotonic() - started
        )
        if sudo and result.exit_code == 1 and _sudo_refused(result.stderr):
            raise SudoUnavailable(
                f"sudo on host {self.host!r} refused {shown!r} ({hide(result.stderr.strip().splitlines()[-1])}); "
                "grant it there, or set sudo.method in hosts.yaml."
            )
        if check and not result.ok:
            raise CommandFailed(_failure(self.host, shown, result, hide), result)
        return result

    def put_file(self, local: str, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        with open(local, "rb") as source:
            self._put(source, remote, mode, sudo)

    def put_bytes(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        self._put(io.BytesIO(data), remote, mode, sudo)

    def get_bytes(self, remote: str, *, sudo: bool = False, max_bytes: int = 64 << 20) -> bytes:
        if sudo:
            return self._get_as_root(remote, max_bytes)

        def read(sftp: paramiko.SFTPClient) -> bytes:
            size = sftp.stat(remote).st_size or 0
            if size > max_bytes:
                raise UsageError(f"{remote} on host {self.host!r} has {size} bytes, more than {max_bytes}.")
            with sftp.open(remote, "rb") as source:
                source.prefetch(size)
                # /proc and /sys files say size 0 and still have content.
                return bytes(source.read(size or max_bytes))

        return self._with_sftp(read, remote)

    def forward(self, remote_port: int, remote_host: str = "127.0.0.1") -> AbstractContextManager[int]:
        def open_channel(origin: tuple[str, int]) -> paramiko.Channel:
            link = self.connect()
            return link.open_channel(
                "direct-tcpip", (remote_host, remote_port), origin, timeout=self.settings.connect_timeout_s
            )

        self.connect()
        return forwarded(open_channel)

    def open_command(self, argv: Sequence[str], *, sudo: bool = False) -> paramiko.Channel:
        """A channel whose two ways are stdin and stdout of a command; the caller closes it."""
        call = quoting.build(
            argv, sudo=sudo and self._use_sudo(argv[0]), sudo_password=self._password() if sudo else None
        )
        channel = self._session(self.connect(), argv[0])
        channel.exec_command(call.line)
        if call.stdin_head:
            channel.sendall(call.stdin_head)
        return channel

    def fresh(self) -> SshTransport:
        other = SshTransport(self.settings, self._mask)
        other.connect()
        return other

    def when_back(self, check: Callable[[], None]) -> None:
        self._check_back = check

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _link(self) -> paramiko.Transport | None:
        link = self._connection.transport if self._connection is not None else None
        return link if link is not None and link.is_active() else None

    def _drop(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
        if self._connection is not None:
            close_connection(self._connection)
        self._connection = self._pulse = None

    def _session(self, link: paramiko.Transport, shown: str) -> paramiko.Channel:
        try:
            return link.open_session(timeout=self.settings.connect_timeout_s)
        except LOST as error:
            if link.is_active() and isinstance(error, paramiko.ChannelException):
                raise OrchestrateError(
                    f"host {self.host!r} opens no further session ({error}); raise MaxSessions of its sshd."
                ) from error
            raise self._lost(link, f"before {shown!r} was started") from error

    def _lost(self, link: paramiko.Transport, when: str) -> ConnectionLost:
        pulse = self._pulse
        why = "the connection broke"
        if pulse is not None and pulse.silent:
            why = f"the host was silent for {self.settings.idle_timeout_s:g} s"
        elif link.is_active() and pulse is not None and pulse.alive():
            why = "the remote shell ended without an exit status"
        return ConnectionLost(f"host {self.host!r}: {why} {when}; run the same again, it looks before it acts.")

    def _stop_call(self, link: paramiko.Transport, call_id: str, sudo: bool) -> None:
        with contextlib.suppress(Dropped, Expired, *LOST), contextlib.closing(link.open_session(timeout=5)) as channel:
            execute(channel, quoting.kill_call(call_id, sudo=sudo), b"", 10.0, None)

    def _use_sudo(self, program: str) -> bool:
        if self.settings.sudo == "none":
            raise SudoUnavailable(
                f"{program!r} on host {self.host!r} needs root, but sudo.method is none; set nopasswd or askpass."
            )
        return True

    def _password(self) -> str | None:
        if self.settings.sudo != "askpass":
            return None
        if self.settings.sudo_password is None:
            raise SudoUnavailable(f"host {self.host!r}: sudo.method askpass needs sudo.password, a reference; add it.")
        return self.settings.sudo_password()

    def _hider(self, secrets: Sequence[str]) -> Callable[[str], str]:
        def hide(text: str) -> str:
            for secret in secrets:
                if secret:
                    text = text.replace(secret, "[secret]")
            return self._mask(text)

        return hide

    def _with_sftp(self, work: Callable[[paramiko.SFTPClient], T], remote: str) -> T:
        link = self.connect()
        try:
            sftp = paramiko.SFTPClient.from_transport(link)
            if sftp is None:
                raise EOFError
            with contextlib.closing(sftp):
                channel = sftp.get_channel()
                if channel is not None:
                    channel.settimeout(self.settings.idle_timeout_s)
                return work(sftp)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{remote} does not exist on host {self.host!r}") from error
        except LOST as error:
            if link.is_active() and isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise OrchestrateError(
                    f"{remote} on host {self.host!r}: {error.strerror or error}; check rights, path and free space."
                ) from error
            raise self._lost(link, f"while {remote} was transferred") from error

    def _put(self, source: BinaryIO, remote: str, mode: int, sudo: bool) -> None:
        digest, size = upload.sha256_of(source)
        part = upload.part_name(remote, digest, size)
        if sudo:
            self._use_sudo(remote)
            # In the login user's own folder, since anybody could lay a link in the way of a name in /tmp.
            home = self._with_sftp(lambda sftp: sftp.normalize("."), remote)
            part = posixpath.join(home, posixpath.basename(part))
        for attempt in (1, 2):
            try:
                self._with_sftp(lambda sftp: upload.send(sftp, source, part, size), remote)
            except FileNotFoundError as error:
                raise OrchestrateError(
                    f"{remote} on host {self.host!r}: the folder {posixpath.dirname(remote)} does not exist; make "
                    "it first."
                ) from error
            if self._finish(part, remote, mode, digest, sudo):
                return
            if attempt == 2:
                raise OrchestrateError(
                    f"{remote} on host {self.host!r} arrived damaged twice (SHA-256 differs); check disk and memory."
                )

    def _finish(self, part: str, remote: str, mode: int, digest: str, sudo: bool) -> bool:
        script = upload.FINISH_AS_ROOT if sudo else upload.FINISH
        done = self.run(["/bin/sh", "-c", script, "sh", part, remote, f"{mode:o}", digest], timeout_s=600, sudo=sudo)
        if sudo and (done.ok or done.exit_code == upload.CORRUPT):
            self.run(["rm", "-f", part])
        if not done.ok and done.exit_code != upload.CORRUPT:
            raise OrchestrateError(
                f"{remote} on host {self.host!r} could not be put in place ({done.stderr.strip()}); check the folder."
            )
        return done.ok

    def _get_as_root(self, remote: str, max_bytes: int) -> bytes:
        script = 'test -e "$1" || exit 66; head -c "$2" "$1" | base64'
        done = self.run(["/bin/sh", "-c", script, "sh", remote, str(max_bytes + 1)], sudo=True, timeout_s=300)
        if done.exit_code == 66:
            raise FileNotFoundError(f"{remote} does not exist on host {self.host!r}")
        if not done.ok:
            raise CommandFailed(_failure(self.host, f"read {remote}", done, self._mask), done)
        data = base64.b64decode(done.stdout)
        if len(data) > max_bytes:
            raise UsageError(f"{remote} on host {self.host!r} has more than {max_bytes} bytes.")
        return data


@contextlib.contextmanager
def opened(settings: SshSettings, mask: Callable[[str], str] = str) -> Iterator[SshTransport]:
    """A connected transport that is closed at the end."""
    transport = SshTransport(settings, mask)
    try:
        transport.connect()
        yield transport
    finally:
        transport.close()


def _sudo_refused(stderr: str) -> bool:
    return any(line.startswith("sudo:") or "is not in the sudoers file" in line for line in stderr.splitlines())


def _failure(host: str, shown: str, result: CommandResult, hide: Callable[[str], str]) -> str:
    text = result.stderr.strip() or result.stdout.strip()
    lines = 1 if "Traceback (most recent call last)" in text else TAIL_LINES  # a traceback's last line says it all
    tail = [line.strip() for line in text.splitlines()[-lines:] if line.strip()]
    said = hide(" | ".join(tail)).rstrip(".") or "no output"
    return f"{shown!r} on host {host!r} ended with exit code {result.exit_code}: {said}."
