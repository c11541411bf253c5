"""Changing the width of a running DDTREE server: the client of the plugin's loopback call `/ddtree/width`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.errors import OrchestrateError
from orchestrator.openai.client import Client
from orchestrator.openai.endpoint import Endpoint, endpoint_of

PATH = "/ddtree/width"
HEADER = "x-ddtree-token"
CHAIN, AUTO = "chain", "auto"
WIDTHS_ENV, TOKEN_ENV = "SGLANG_DDTREE_WIDTHS", "SGLANG_DDTREE_CONTROL_TOKEN"


class WidthSwitch:
    """One server's switch. `url` must reach the server on its own loopback (directly, or through a forwarded port)."""

    def __init__(self, url: Endpoint | str, token: str) -> None:
        # A refusal is told in the server's words: they say whether it was this token or the API key.
        self._url, self._headers = replace(endpoint_of(url), key_from=""), {HEADER: token}

    def state(self) -> dict[str, Any] | None:
        """What the server holds: `widths` (labels), `width` in force, `counts` by width; None when it has no switch."""
        return self._ask("GET")

    def set(self, width: int | str) -> dict[str, Any]:
        """Have that many nodes (or `chain`, `auto`, `start`) from the next step on; OrchestrateError when refused."""
        found = self._ask("PUT", {"width": width})
        if found is None:
            raise OrchestrateError(f"{self._url} has no width switch; start it with {TOKEN_ENV} and {WIDTHS_ENV}.")
        if isinstance(width, int) and found.get("width") != str(width):
            raise OrchestrateError(f"{self._url} was told to have {width} nodes and says {found.get('width')!r}.")
        return found

    def _ask(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        with Client(self._url) as client:
            answer = client.request(method, PATH, headers=self._headers, json=body)
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise OrchestrateError(
                f"{self._url}{PATH} refused {body or method} (HTTP {answer.status_code}: {answer.text[:200]})."
            )
        try:
            found = answer.json()
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise OrchestrateError(
                f"{self._url}{PATH} answered no JSON object ({answer.text[:80]!r}); is it the plugin?"
            )
        return found
