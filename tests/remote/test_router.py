"""The router's workers API as version 0.3.2 answers it: changes are queued, so that accepted does not mean done."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.rotation import running_requests
from orchestrator.openai.client import Client
from orchestrator.remote.router import Router, RouterError, rejoin_command

A, B = "http://127.0.0.1:30000", "http://127.0.0.1:30001"


@dataclass
class State:
    """What the stand-in answers. delay: how many times it is asked before a queued change shows."""

    workers: dict[str, str] = field(default_factory=lambda: {str(uuid.uuid4()): A, str(uuid.uuid4()): B})
    queue: list[tuple[str, str]] = field(default_factory=list)
    delay: int = 2
    deaf: bool = False
    bodies: list[Any] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)

    def work(self) -> None:
        if self.deaf or not self.queue:
            return
        self.delay -= 1
        if self.delay <= 0:
            verb, what = self.queue.pop(0)
            if verb == "remove":
                self.workers.pop(what, None)
            else:
                self.workers[str(uuid.uuid4())] = what


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        state: State = self.server.state  # type: ignore[attr-defined]
        if self.path == "/workers":
            state.work()
            rows = [{"id": key, "url": url + "/", "is_healthy": True} for key, url in state.workers.items()]
            self._json(200, {"workers": rows})
        else:
            self._json(*state.answers.get(self.path.split("?")[0], (404, {})))

    def do_DELETE(self) -> None:
        self.server.state.queue.append(("remove", self.path.rsplit("/", 1)[1]))  # type: ignore[attr-defined]
        self._json(202, {"status": "accepted"})

    def do_POST(self) -> None:
        wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.state.bodies.append(wish)  # type: ignore[attr-defined]
        self.server.state.queue.append(("add", wish["url"]))  # type: ignore[attr-defined]
        self._json(202, {"status": "accepted"})

    def _json(self, status: int, document: Any) -> None:
        body = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.state = State()  # type: ignore[attr-defined]
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def client(server: Any) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{server.server_port}") as opened:
        yield opened


def quiet(_text: str, _waited: float, _limit: float) -> None:
    """Progress that nobody watches."""


def test_removing_returns_only_when_the_router_no_longer_lists_it(client: Client) -> None:
    router = Router(client, "h")
    router.remove(A, 10, quiet)
    assert router.healthy() == {B}
    router.remove(A, 10, quiet)  # again: nothing to do
    router.add(A, 10, quiet)
    assert router.healthy() == {A, B}


def test_a_change_that_is_accepted_and_never_made_is_an_error(server: Any, client: Client) -> None:
    server.state.deaf = True
    with pytest.raises(RouterError, match=r"accepted to remove .*30000, but did not within 0.5 s"):
        Router(client, "h").remove(A, 0.5, quiet)


def test_a_replica_with_a_key_is_added_with_it(server: Any, client: Client) -> None:
    Router(client, "h", "k").add("http://127.0.0.1:30009", 10, quiet)
    assert server.state.bodies == [{"url": "http://127.0.0.1:30009", "api_key": "k"}]


def test_the_hosts_own_command_adds_the_replica_and_never_fails(server: Any) -> None:
    config = HostConfig.model_validate({
        "name": "h", "transport": "embedded", "engine": "sglang-cpu", "model": "tiny-dense", "replicas": 2,
        "router": {"enabled": True, "port": server.server_port},
    })  # fmt: skip
    subprocess.run(rejoin_command(config.of_replica(1)), check=True, timeout=60)
    assert server.state.bodies == [{"url": B}]
    gone = config.model_copy(update={"router": config.router.model_copy(update={"port": 1})})
    subprocess.run(rejoin_command(gone.of_replica(1)), check=True, timeout=60, capture_output=True)


METRICS = 'sglang:num_running_reqs{m="x"} 2.0\nsglang:num_queue_reqs{m="x"} 1.0\n'


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"/v1/loads": (200, {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 4}]})}, 7),
        ({"/get_load": (200, [{"num_reqs": 3, "num_waiting_reqs": 1}, {"num_reqs": 0, "num_waiting_reqs": 0}])}, 3),
        ({"/metrics": (200, METRICS)}, 3),
    ],
    ids=["0.5.20", "0.5.16", "metrics only"],
)
def test_an_engine_says_how_many_requests_run(
    server: Any, client: Client, answers: dict[str, Any], expected: int
) -> None:
    server.state.answers = answers
    assert running_requests(client) == expected


def test_an_engine_that_says_nothing_cannot_be_drained(client: Client) -> None:
    with pytest.raises(OrchestrateError, match="cannot be drained"):
        running_requests(client)
