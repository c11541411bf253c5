"""A loopback SSH server in pure Python: the host that needs no second machine, no sshd and no root.

Started detached as `python -m orchestrator.transport.embedded_server DIR PORT`; DIR holds its keys and `home/`.
Commands run as the calling user with a clean environment, in a session of their own, and go on when the client
leaves, as under a real sshd.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
from paramiko import common

from orchestrator.transport.embedded_sftp import Files
from orchestrator.transport.forward import relay

PIECE = 32 * 1024
CLIENT_LIMIT = 64
# An allow-list, since the server's own environment may hold secrets.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "TMPDIR")


class Server(paramiko.ServerInterface):
    """One per connection: only the generated key of this host's user may enter, only loopback may be forwarded."""

    def __init__(self, home: Path, allowed: paramiko.PKey) -> None:
        self.home = home
        self._allowed = allowed
        self._targets: dict[int, socket.socket] = {}
        self._open: set[paramiko.Channel] = set()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        right = username == getpass.getuser() and key.asbytes() == self._allowed.asbytes()
        return common.AUTH_SUCCESSFUL if right else common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return common.OPEN_SUCCEEDED
        return common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        if destination[0] not in ("127.0.0.1", "localhost", "::1"):
            return common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        try:
            target = socket.create_connection(destination, timeout=5)
        except OSError:
            return common.OPEN_FAILED_CONNECT_FAILED
        target.settimeout(None)
        self._targets[chanid] = target
        return common.OPEN_SUCCEEDED

    def check_channel_env_request(self, channel: paramiko.Channel, name: bytes, value: bytes) -> bool:
        return False  # like a stock sshd: the client inlines its environment

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=run_command, args=(channel, command.decode(), self.home), daemon=True).start()
        return True

    def take(self, channel: paramiko.Channel) -> None:
        """Own a channel that the client opened: a forwarded one gets its relay, a session is held until it closes."""
        self._open = {held for held in self._open if not held.closed}
        self._open.add(channel)  # Paramiko itself keeps channels by weak reference only
        target = self._targets.pop(channel.get_id(), None)
        if target is not None:
            threading.Thread(target=self._forward, args=(channel, target), daemon=True).start()

    @staticmethod
    def _forward(channel: paramiko.Channel, target: socket.socket) -> None:
        with contextlib.closing(target), contextlib.closing(channel), contextlib.suppress(OSError, EOFError):
            relay(target, channel)


def run_command(channel: paramiko.Channel, command: str, home: Path) -> None:
    """Run one exec request to its end and send the exit status (128 + number for a signal)."""
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env.update(HOME=str(home), SHELL="/bin/sh", SSH_CONNECTION="127.0.0.1 0 127.0.0.1 0")
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=home,
        start_new_session=True,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pumps = [
        threading.Thread(target=_pump, args=(process.stdout.read, channel.sendall), daemon=True),
        threading.Thread(target=_pump, args=(process.stderr.read, channel.sendall_stderr), daemon=True),
    ]
    feeder = threading.Thread(target=_pump, args=(channel.recv, process.stdin.write, process.stdin.close), daemon=True)
    for thread in (*pumps, feeder):
        thread.start()
    code = process.wait()
    for pump in pumps:
        pump.join(5)  # a background child may keep the pipe open; the client has its answer anyway
    with contextlib.suppress(OSError, EOFError):
        channel.send_exit_status(code if code >= 0 else 128 - code)
        channel.shutdown_write()
        channel.close()


def _pump(
    read: Callable[[int], bytes], write: Callable[[bytes], object], close: Callable[[], None] | None = None
) -> None:
    with contextlib.suppress(OSError, ValueError, EOFError):
        while data := read(PIECE):
            write(data)
    if close is not None:
        with contextlib.suppress(OSError):
            close()


def serve_client(sock: socket.socket, home: Path, host_key: paramiko.PKey, allowed: paramiko.PKey) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as sshd does: answers are small and waited for
    transport = paramiko.Transport(sock)
    server = Server(home, allowed)
    try:
        transport.add_server_key(host_key)
        transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
        transport.start_server(server=server)
    except (paramiko.SSHException, EOFError, OSError):
        transport.close()
        return
    while transport.is_active():
        channel = transport.accept(1.0)
        if channel is not None:
            server.take(channel)


def main(folder: Path, port: int) -> None:
    """Listen on 127.0.0.1 for ever; SIGTERM ends it. The caller has made keys and home."""
    host_key = paramiko.Ed25519Key(filename=str(folder / "host_key"))
    allowed = paramiko.Ed25519Key(filename=str(folder / "user_key"))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    listener = socket.create_server(("127.0.0.1", port), backlog=CLIENT_LIMIT)
    (folder / "port").write_text(str(listener.getsockname()[1]))
    print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve_client, args=(client, folder / "home", host_key, allowed), daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
