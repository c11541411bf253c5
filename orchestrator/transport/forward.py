"""A loopback port on this machine that leads through an SSH connection to a port of the host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import paramiko

from orchestrator.errors import OrchestrateError

PIECE = 64 * 1024
OpenChannel = Callable[[tuple[str, int]], paramiko.Channel]


@contextlib.contextmanager
def forwarded(open_channel: OpenChannel) -> Iterator[int]:
    """Listen on 127.0.0.1 (bound before this yields) and connect each client through `open_channel(origin)`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()
        live: set[socket.socket] = set()
        worker = threading.Thread(target=_accept, args=(listener, open_channel, stop, live), daemon=True)
        worker.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            for client in list(live):
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            worker.join(2)


def _accept(
    listener: socket.socket, open_channel: OpenChannel, stop: threading.Event, live: set[socket.socket]
) -> None:
    listener.settimeout(0.2)
    while not stop.is_set():
        try:
            client, origin = listener.accept()
        except TimeoutError:
            continue
        except OSError:
            return
        live.add(client)
        threading.Thread(target=_serve, args=(client, origin, open_channel, live), daemon=True).start()


def _serve(client: socket.socket, origin: tuple[str, int], open_channel: OpenChannel, live: set[socket.socket]) -> None:
    with contextlib.closing(client):
        try:
            channel = open_channel(origin)
        except (paramiko.SSHException, OSError, EOFError, OrchestrateError):
            live.discard(client)
            return  # closing the client is the answer: nothing listens there, or the host is out of reach
        with contextlib.closing(channel), contextlib.suppress(OSError, EOFError):
            relay(client, channel)
        live.discard(client)


def relay(client: socket.socket, channel: paramiko.Channel) -> None:
    """Copy both ways until the channel's side has ended; a half-closed client may still be answered.

    Two threads and no select(): Paramiko ends its whole connection when a channel that was selected on is closed just
    as data comes for it, since it then writes to a file descriptor that is gone, or somebody else's by now.
    """
    with contextlib.suppress(OSError):  # a socket that is not TCP has no such option
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sender = threading.Thread(target=_send, args=(client, channel), daemon=True)
    sender.start()
    try:
        while data := channel.recv(PIECE):
            client.sendall(data)
    finally:
        channel.close()  # wakes a sender that waits for room in the channel
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # and one that waits for the client
        sender.join()


def _send(client: socket.socket, channel: paramiko.Channel) -> None:
    """From the client to the channel; the channel is closed when the client has gone, and half-closed when it is done."""
    try:
        while data := client.recv(PIECE):
            channel.sendall(data)
        channel.shutdown_write()
    except (OSError, EOFError, paramiko.SSHException):
        channel.close()
