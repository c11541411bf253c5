"""SGLang's router (package sglang-router) over its workers API: which replicas it sends requests to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import HostError, OrchestrateError
from orchestrator.hosts.inventory import HostConfig
from orchestrator.openai.client import Client

POLL_S = 0.2
# Adding is queued by the router, which waits until the replica is healthy; asking twice for one replica is harmless.
REJOIN = (
    "import json,sys,urllib.request as u; u.build_opener(u.ProxyHandler({})).open(u.Request(sys.argv[1],"
    "json.dumps({'url':sys.argv[2]}).encode(),{'Content-Type':'application/json'}),timeout=20)"
)
Waiting = Callable[[str, float, float], None]  # text, seconds waited, limit; may raise to stop waiting


class RouterError(OrchestrateError):
    """The router does not answer, refuses, or does not do what it accepted."""


@dataclass(frozen=True)
class Worker:
    """A replica as the router knows it."""

    id: str
    url: str
    healthy: bool


def worker_url(config: HostConfig) -> str:
    """The name of a replica at its router; `config` is that replica's."""
    return f"http://{config.router.workers}:{config.service.port}"


def workers_api(config: HostConfig) -> str:
    """Where the router's host reaches its list of replicas."""
    return f"http://127.0.0.1:{config.router.port}/workers"


def rejoin_command(config: HostConfig) -> tuple[str, ...]:
    """What the host runs to tell its router of a replica that it restored by itself; it never fails.

    A router that asks for a key is told by the guard of `hosts/comeback.py`: a key must not stand in an argument list.
    """
    return ("/bin/sh", "-c", 'python3 -c "$0" "$1" "$2" || true', REJOIN, workers_api(config), worker_url(config))


@dataclass(frozen=True)
class Router:
    """The router behind an open client; `host` names the machine in errors."""

    client: Client
    host: str
    replica_key: str | None = None

    def workers(self) -> list[Worker]:
        answer = self._ask("GET", "/workers")
        return [
            Worker(str(row["id"]), str(row["url"]).rstrip("/"), bool(row["is_healthy"])) for row in answer["workers"]
        ]

    def healthy(self) -> set[str]:
        """URLs of the replicas that get requests."""
        return {worker.url for worker in self.workers() if worker.healthy}

    def remove(self, url: str, timeout_s: float, waiting: Waiting) -> None:
        """Take a replica out; returns once the router no longer lists it. Its running requests go on."""
        for worker in self.workers():
            if worker.url == url:
                self._ask("DELETE", f"/workers/{worker.id}")
        self._until(lambda: all(one.url != url for one in self.workers()), f"remove {url}", timeout_s, waiting)

    def add(self, url: str, timeout_s: float, waiting: Waiting) -> None:
        """Bring a replica back; returns once the router calls it healthy. Nothing happens when it does already."""
        if url in self.healthy():
            return
        wish = {"url": url} | ({"api_key": self.replica_key} if self.replica_key else {})
        self._ask("POST", "/workers", wish)
        self._until(lambda: url in self.healthy(), f"add {url}", timeout_s, waiting)

    def _until(self, true: Callable[[], bool], what: str, timeout_s: float, waiting: Waiting) -> None:
        started = time.monotonic()
        while not true():
            waited = time.monotonic() - started
            waiting(f"waiting for the router to {what}", waited, timeout_s)
            if waited > timeout_s:
                raise RouterError(
                    f"The router on {self.host!r} accepted to {what}, but did not within {timeout_s:g} s; see its log."
                )
            time.sleep(POLL_S)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self.client.request(method, path, json=body)
        except HostError as error:
            raise RouterError(
                f"The router on {self.host!r} does not answer ({error}); start its unit, or correct router.port in "
                "hosts.yaml."
            ) from error
        if not answer.is_success:
            raise RouterError(
                f"The router on {self.host!r} refused {method} {path} ({answer.status_code}: {answer.text[:200]}); "
                "it must be sglang-router 0.2 or newer."
            )
        found: dict[str, Any] = json.loads(answer.text)
        return found
