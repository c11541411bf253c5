"""The TUI in a browser on this machine: textual-serve behind a token that works once."""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

LOOPBACK = "127.0.0.1"
COOKIE = "orchestrate_tui"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """Lets one browser in: the token is exchanged for a cookie once, everything else is refused."""

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self._used = False
        self._hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    def refuses(self, request: web.Request) -> str:
        """Why a request is not let in, "" if it is. Foreign Host and Origin are refused against DNS rebinding."""
        if request.host not in self._hosts:
            return "this host name is not served"
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc not in self._hosts:
            return "this page may not connect here"
        if _same(request.cookies.get(COOKIE, ""), self._session) or self.fits(request):
            return ""
        return "the token is missing, wrong or used already: start `orchestrate tui --web` again for a new one"

    def fits(self, request: web.Request) -> bool:
        return not self._used and request.path == "/" and _same(request.query.get("token", ""), self.token)

    def admit(self, response: web.StreamResponse) -> None:
        self._used = True
        response.set_cookie(COOKIE, self._session, httponly=True, samesite="Strict")


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


class GuardedServer(Server):
    """textual-serve on loopback only, with the gate in front of every route."""

    def __init__(self, command: str, port: int, gate: Gate) -> None:
        super().__init__(command, host=LOOPBACK, port=port, title="orchestrate")
        self.gate = gate

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        problem = self.gate.refuses(request)
        if problem:
            return web.Response(status=403, text=problem + "\n")
        if self.gate.fits(request):
            response: web.StreamResponse = web.HTTPFound("/")  # the token leaves the address bar
            self.gate.admit(response)
            return response
        return await handler(request)

    def initialize_logging(self) -> None:
        """No access log: it would show the token."""

    async def on_startup(self, app: web.Application) -> None:
        """The address is printed before the server starts; no banner."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def serve(store_url: str, run_id: str | None, hosts_file: Path, say: Callable[[str], None], port: int = 0) -> int:
    """Serves until Ctrl-C. The store's URL travels in the environment (ORCHESTRATE_STATE), never on a command line."""
    os.environ["ORCHESTRATE_STATE"] = store_url
    port = port or free_port()
    command = [sys.executable, "-m", "orchestrator", "tui", *([run_id] if run_id else []), "--hosts", str(hosts_file)]
    gate = Gate(port)
    say(f"open http://{LOOPBACK}:{port}/?token={gate.token}")
    say("The token works once, from this machine only (through SSH: ssh -L). Ctrl-C ends the page, never a run.")
    GuardedServer(shlex.join(command), port, gate).serve()
    return 0
