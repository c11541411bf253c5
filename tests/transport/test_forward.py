"""Ports forwarded through a real SSH server: both ways, to nobody, and clients that leave."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
from pathlib import Path

import pytest

from orchestrator.transport.settings import SshSettings
from orchestrator.transport.ssh import SshTransport

Embedded = tuple[Path, SshSettings]


def test_forwarding_reaches_a_loopback_port_both_ways(transport: SshTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            client, _ = listener.accept()
            with client:
                while data := client.recv(65536):
                    client.sendall(data)

        threading.Thread(target=echo, daemon=True).start()
        with transport.forward(listener.getsockname()[1]) as port, socket.create_connection(("127.0.0.1", port)) as end:
            data = os.urandom(1_000_000)
            sender = threading.Thread(target=end.sendall, args=(data,))
            sender.start()
            received = b""
            while len(received) < len(data):
                received += end.recv(65536)
            sender.join()
    assert received == data


def test_clients_that_leave_mid_stream_do_not_cost_the_connection(transport: SshTransport) -> None:
    """Paramiko's own channels break a whole connection when they are waited for by select() and closed as data comes."""
    piece, broken = b"x" * 4096, threading.Event()

    def talk(server: socket.socket) -> None:
        with contextlib.suppress(OSError), server:
            while True:
                server.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        link = transport.connect()
        with transport.forward(listener.getsockname()[1]) as port:

            def leave_early() -> None:
                for _ in range(60):
                    with socket.create_connection(("127.0.0.1", port)) as end:
                        end.settimeout(20)
                        if not end.recv(1):
                            broken.set()

            clients = [threading.Thread(target=leave_early) for _ in range(4)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
        listener.shutdown(socket.SHUT_RDWR)
    assert not broken.is_set()
    assert transport.connect() is link


def test_forwarding_to_a_closed_port_closes_the_client(transport: SshTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    with transport.forward(closed) as port, socket.create_connection(("127.0.0.1", port)) as end:
        assert end.recv(1) == b""


def test_forwarding_to_a_host_that_is_gone_closes_the_client_without_a_traceback(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    link = SshTransport(embedded[1])
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nobody = unused.getsockname()[1]
    with link.forward(9) as port:
        link.close()
        link.settings = dataclasses.replace(embedded[1], port=nobody)
        with socket.create_connection(("127.0.0.1", port)) as end:
            assert end.recv(1) == b""
    assert raised == []


def test_the_embedded_host_forwards_to_loopback_only(transport: SshTransport) -> None:
    with transport.forward(80, "192.0.2.1") as port, socket.create_connection(("127.0.0.1", port)) as end:
        assert end.recv(1) == b""
