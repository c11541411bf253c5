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
PAGE = Path(__file__).parent / "web_page"
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src {socket}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """Lets one browser in: the token is exchanged for a cookie once, everything else is refused."""

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self._used = False
        self._host = f"{LOOPBACK}:{port}"

    def refuses(self, request: web.Request) -> str:
        """Why a request is not let in, "" if it is. Foreign Host and Origin are refused against DNS rebinding."""
        if request.host != self._host:
            return "this host name is not served"
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self._host:
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
        super().__init__(command, host=LOOPBACK, port=port, title="orchestrate", templates_path=PAGE)
        self.gate = gate
        self.headers = {
            "Content-Security-Policy": POLICY.format(socket=f"ws://{LOOPBACK}:{port}"),
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(self._harden)
        return app

    async def _harden(self, request: web.Request, response: web.StreamResponse) -> None:
        """The page loads nothing from elsewhere, stands in no frame, and leaves no copy in a cache."""
        response.headers.update(self.headers)

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
    say(
        f"The token works once, on this machine or through `ssh -L {port}:{LOOPBACK}:{port}`. Ctrl-C ends the page, never a run."
    )
    GuardedServer(shlex.join(command), port, gate).serve()
    return 0
