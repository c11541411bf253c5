"""What a smoke check is made of: how it asks, and how it says failed or not offered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.openai.client import Client, payload_for
from orchestrator.openai.records import Api, Completion


class CheckFailed(Exception):
    """The server did something else than it should; the text says what."""


class NotOffered(Exception):
    """The server does not have this capability; the text says how that was seen."""


@dataclass
class Probe:
    """What a check works with. reference: prompt -> greedy ids of the service to compare with."""

    client: Client
    model: str
    api_key: str | None = None
    quick: bool = False
    reference: Callable[[str, int], Sequence[int]] | None = None
    lossless_prompts: Sequence[str] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def ask(self, api: Api, prompt: Any, max_tokens: int, **extra: Any) -> Completion:
        """One greedy request through an OpenAI endpoint; `extra` goes into the body (stream=True streams)."""
        body = payload_for(api, prompt, max_tokens, model=self.model, stream=False)
        if extra.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return self.client.complete(api, body | extra)

    def expect(self, api: Api, prompt: Any, max_tokens: int, **extra: Any) -> Completion:
        """`ask`, and CheckFailed unless the answer is complete and counted."""
        done = self.ask(api, prompt, max_tokens, **extra)
        if not done.ok:
            raise CheckFailed(f"HTTP {done.status}, {done.completion_tokens} tokens, {done.error or 'no end mark'}")
        return done

    def still_serves(self) -> None:
        """CheckFailed unless an ordinary request works now."""
        done = self.ask(Api.COMPLETIONS, "The sea is", 4)
        if not done.ok:
            raise CheckFailed(f"afterwards an ordinary request failed: HTTP {done.status} {done.error}")


Check = Callable[[Probe], str]


@dataclass(frozen=True)
class NamedCheck:
    name: str
    proves: str
    run: Check
    quick: bool = True
