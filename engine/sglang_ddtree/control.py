"""Switching the width of a running server: one HTTP call from the same host, and the scheduler's side of it.

The call travels in SGLang's own control message (``set_internal_state``), whose keys are text and whose values are numbers.
The key carries a digest of the token, so SGLang's open route of that name can't switch widths without it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

from .patches import active, replace
from .widths import code_of

TOKEN = "SGLANG_DDTREE_CONTROL_TOKEN"
HEADER = "x-ddtree-token"
PATH = "/ddtree/width"
SHORTEST_TOKEN = 16
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def token() -> str | None:
    """The secret of the switch, None where the switch is off; ValueError for one that could be guessed."""
    value = os.environ.get(TOKEN, "")
    if value and len(value) < SHORTEST_TOKEN:
        raise ValueError(f"{TOKEN} must have {SHORTEST_TOKEN} characters or more.")
    return value or None


def message_key(secret: str) -> str:
    return "ddtree_width:" + hashlib.sha256(secret.encode()).hexdigest()


def install_route() -> None:
    """Serve ``GET`` and ``PUT /ddtree/width`` in this process's HTTP server when a token is set."""
    if token() is None:
        return
    from sglang.srt.entrypoints import http_server

    if all(getattr(route, "path", None) != PATH for route in http_server.app.routes):
        http_server.app.add_route(PATH, _width_endpoint, methods=["GET", "PUT"])


async def _width_endpoint(request: Any) -> Any:
    """PUT {"width": "chain" | "auto" | "start" | nodes} switches; both answer with the state."""
    from fastapi.responses import JSONResponse
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.io_struct import SetInternalStateReq

    def refuse(status: int, sentence: str) -> JSONResponse:
        return JSONResponse({"error": sentence}, status_code=status)

    secret = token() or ""
    if request.client is None or request.client.host not in LOOPBACK:
        return refuse(403, "The width is switched from the server's own host only.")
    if not hmac.compare_digest(request.headers.get(HEADER, "").encode(), secret.encode()):
        return refuse(401, f"The header {HEADER} must hold the server's {TOKEN}.")
    manager = http_server._global_state.tokenizer_manager
    if request.method == "PUT":
        try:
            code = code_of((await request.json())["width"])
        except (ValueError, TypeError, KeyError) as error:
            return refuse(400, f'The body must be {{"width": chain, auto, start or a node budget}} ({error}).')
        switched = await manager.set_internal_state(SetInternalStateReq(server_args={message_key(secret): code}))
        if not all(switched):
            return refuse(409, "This server does not hold that width: GET this address for those it holds.")
    states = await manager.get_internal_state()
    return JSONResponse(states[0]["ddtree"])


def handle_switches() -> None:
    """The scheduler follows control messages with our key, and shows the widths in its internal state."""
    from sglang.srt.managers.scheduler import Scheduler

    def wrap_set(original: Any) -> Any:
        def set_internal_state(self: Any, recv_req: Any) -> Any:
            secret = token() if active() else None
            if secret is None or list(recv_req.server_args) != [message_key(secret)]:
                return original(self, recv_req)
            from sglang.srt.managers.io_struct import SetInternalStateReqOutput

            return SetInternalStateReqOutput(updated=switch(self.draft_worker, int(*recv_req.server_args.values())))

        return set_internal_state

    def wrap_get(original: Any) -> Any:
        def get_internal_state(self: Any, recv_req: Any) -> Any:
            result = original(self, recv_req)
            if active() and token() is not None:
                result.internal_state["ddtree"] = state(self.draft_worker)
            return result

        return get_internal_state

    replace(Scheduler, "set_internal_state", wrap_set)
    replace(Scheduler, "get_internal_state", wrap_get)


def switch(worker: Any, code: int) -> bool:
    """Whether the worker holds that width; if so, its next step has it."""
    try:
        worker.widths.switch(code)
    except ValueError:
        return False
    return True


def state(worker: Any) -> dict[str, Any]:
    """The width in force, those held, and the counters by width."""
    counts = {label: vars(found) for label, found in worker.metrics.by_width.items()}
    return {**worker.widths.state(), "counts": counts}
