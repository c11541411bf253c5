"""What one request produced, event by event, with the times at which the client saw it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.openai.sse import DONE


class Api(StrEnum):
    """Which endpoint a request goes to; the value is its path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    NATIVE = "/generate"


@dataclass(frozen=True)
class Delivery:
    """One streamed event that carried output.

    `at_s` is the client's clock in seconds. `tokens` is the cumulative number of output tokens the server
    had reported by then, or None where the stream does not say (then only the final usage does).
    """

    at_s: float
    chars: int
    tokens: int | None = None
    reasoning: bool = False


@dataclass
class Completion:
    """One finished, failed or cut-off request. Times are seconds of the same clock."""

    prompt_id: str = ""
    sent_at_s: float = 0.0
    ended_at_s: float = 0.0
    status: int = 0
    error: str = ""
    text: str = ""
    reasoning: str = ""
    output_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    terminated: bool = False
    meta_info: dict[str, Any] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """The server answered 200, ended the stream properly and reported at least one token."""
        return self.status == 200 and not self.error and self.terminated and bool(self.completion_tokens)


def finish_of(value: Any) -> str | None:
    """The finish reason as a word; SGLang's native endpoint wraps it in an object."""
    if isinstance(value, Mapping):
        return str(value.get("type", "")) or None
    return str(value) if value else None


class Assembler:
    """Builds a Completion from the events of one stream (or from one whole answer)."""

    def __init__(self, api: Api, completion: Completion) -> None:
        self._api = api
        self.completion = completion

    def event(self, data: str, at_s: float) -> None:
        """Take one event's data; malformed JSON and error objects end up in `completion.error`."""
        if data == DONE:
            self.completion.terminated = True
            return
        try:
            body = json.loads(data)
        except ValueError:
            self.completion.error = f"the stream carried an event that is not JSON: {data[:80]!r}"
            return
        if not isinstance(body, dict):
            self.completion.error = f"the stream carried an event that is not an object: {data[:80]!r}"
        elif body.get("error"):
            self.completion.error = str(body["error"])[:300]
        elif self._api is Api.NATIVE:
            self._native(body, at_s)
        else:
            self._openai(body, at_s)

    def whole(self, body: Mapping[str, Any], at_s: float) -> None:
        """Take a non-streamed answer."""
        if self._api is Api.NATIVE:
            self._native(body, at_s)
        else:
            self._openai(body, at_s)
        self.completion.terminated = True

    def _native(self, body: Mapping[str, Any], at_s: float) -> None:
        done = self.completion
        meta = body.get("meta_info") or {}
        tokens = int(meta["completion_tokens"]) if "completion_tokens" in meta else None
        before = len(done.text), (done.deliveries[-1].tokens or 0) if done.deliveries else 0
        self._native_output(str(body.get("text") or ""), body.get("output_ids"), tokens)
        new_chars = max(0, len(done.text) - before[0])
        if new_chars or (tokens or 0) > before[1]:
            done.deliveries.append(Delivery(at_s, new_chars, tokens))
        done.meta_info.update(meta)
        done.prompt_tokens = meta.get("prompt_tokens", done.prompt_tokens)
        done.cached_tokens = meta.get("cached_tokens", done.cached_tokens)
        done.completion_tokens = tokens if tokens is not None else done.completion_tokens
        done.finish_reason = finish_of(meta.get("finish_reason")) or done.finish_reason

    def _native_output(self, text: str, ids: list[int] | None, tokens: int | None) -> None:
        """SGLang streams the whole output so far, or only what is new, depending on a server flag."""
        done = self.completion
        incremental = not text.startswith(done.text)
        if ids is not None:
            incremental = tokens is not None and len(ids) < tokens
            done.output_ids = [*done.output_ids, *ids] if incremental else list(ids)
        if incremental:
            done.text += text
        else:
            done.text = text or done.text

    def _openai(self, body: Mapping[str, Any], at_s: float) -> None:
        done = self.completion
        usage = body.get("usage") or {}
        tokens = usage.get("completion_tokens")
        for choice in body.get("choices") or []:
            part = choice.get("delta") or choice.get("message") or {}
            content = str(part.get("content") or choice.get("text") or "")
            thought = str(part.get("reasoning_content") or part.get("reasoning") or "")
            called = json.dumps(part["tool_calls"]) if part.get("tool_calls") else ""
            if content or thought or called:
                chars = len(content) + len(thought) + len(called)
                done.deliveries.append(Delivery(at_s, chars, tokens, reasoning=not content and bool(thought)))
            done.text += content
            done.reasoning += thought
            done.finish_reason = finish_of(choice.get("finish_reason")) or done.finish_reason
            done.output_ids += [int(i) for i in choice.get("token_ids") or []]
            done.meta_info.update(choice.get("meta_info") or {})
        if usage:
            done.prompt_tokens = usage.get("prompt_tokens", done.prompt_tokens)
            done.completion_tokens = tokens if tokens is not None else done.completion_tokens
            details = usage.get("prompt_tokens_details") or {}
            done.cached_tokens = details.get("cached_tokens", done.cached_tokens)
        extra = (body.get("sglext") or {}).get("spec_tokens_details")
        if isinstance(extra, Mapping):
            done.meta_info.update(extra)
