"""The client over a kept connection that the server gives up just when it is used again."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from orchestrator.errors import HostError
from orchestrator.openai.client import Client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(params=["closed", "reset"])
def forgetful(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[bytes]]]:
    """Answers the first request of a connection and hangs up at the second; also what it was sent."""
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link:
                for reply in (ANSWER, b""):
                    heard.append(link.recv(65536))
                    link.sendall(reply)
                if request.param == "reset":
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
        listener.shutdown(socket.SHUT_RDWR)


def test_what_changes_nothing_is_asked_again(forgetful: tuple[str, list[bytes]]) -> None:
    url, heard = forgetful
    with Client(url, timeout_s=20) as client:
        answers = [client.request("GET", "/metrics") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert sum(request.startswith(b"GET") for request in heard) == 3


def test_a_request_that_may_have_been_done_is_not(forgetful: tuple[str, list[bytes]]) -> None:
    url, heard = forgetful
    with Client(url, timeout_s=20) as client:
        client.request("GET", "/metrics")
        with pytest.raises(HostError, match="got no answer"):
            client.request("POST", "/generate", json={})
    assert sum(request.startswith(b"POST") for request in heard) == 1
