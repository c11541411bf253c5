"""What one request produced, event by event, with the times at which the client saw it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.openai.sse import DONE

ERROR_CHARS = 300


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


UNEXPECTED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def whole_number(value: Any) -> int | None:
    """A count as a server tells it; None for what is no count at all."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and -(2**63) < value < 2**63
    return int(value) if sound else None


class Assembler:
    """Builds a Completion from the events of one stream (or from one whole answer).

    Whatever a server sends, nothing is raised: what can't be read ends up in `completion.error`.
    """

    def __init__(self, api: Api, completion: Completion) -> None:
        self._api = api
        self.completion = completion
        self._events = 0
        self._head = b""

    def received(self, chunk: bytes) -> None:
        """Keep how the answer begins, for the case that it holds no event."""
        if not self._events and len(self._head) < ERROR_CHARS:
            self._head += chunk[:ERROR_CHARS]

    def ended(self) -> None:
        """The stream is over: an answer without any event is an error page or a refusal, whatever its status says."""
        if not self._events and not self.completion.error:
            said = self._head.decode("utf-8", "replace")[:ERROR_CHARS]
            self.completion.error = f"the answer held no event: {said!r}"

    def event(self, data: str, at_s: float) -> None:
        """Take one event's data."""
        self._events += 1
        if data == DONE:
            self.completion.terminated = True
        elif self.completion.terminated:
            self.completion.error = f"the stream went on after its end mark: {data[:80]!r}"
        else:
            self._take(data, at_s, "the stream carried an event")

    def whole(self, text: str, at_s: float) -> None:
        """Take the body of a non-streamed answer."""
        self._take(text, at_s, "the answer is one")
        self.completion.terminated = not self.completion.error

    def _take(self, text: str, at_s: float, what: str) -> None:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            self.completion.error = f"{what} that is not JSON: {text[:80]!r}"
            return
        if not isinstance(body, dict):
            self.completion.error = f"{what} that is not an object: {text[:80]!r}"
        elif body.get("error") or body.get("object") == "error":
            self.completion.error = str(body.get("error") or body.get("message"))[:ERROR_CHARS]
        else:
            try:
                self._native(body, at_s) if self._api is Api.NATIVE else self._openai(body, at_s)
            except UNEXPECTED as exc:
                self.completion.error = f"{what} of an unexpected form ({type(exc).__name__}: {exc}): {text[:80]!r}"

    def _native(self, body: Mapping[str, Any], at_s: float) -> None:
        done = self.completion
        meta = body.get("meta_info") or {}
        tokens = whole_number(meta["completion_tokens"]) if "completion_tokens" in meta else None
        before = len(done.text), (done.deliveries[-1].tokens or 0) if done.deliveries else 0
        self._native_output(str(body.get("text") or ""), body.get("output_ids"), tokens)
        new_chars = max(0, len(done.text) - before[0])
        if new_chars or (tokens or 0) > before[1]:
            done.deliveries.append(Delivery(at_s, new_chars, tokens))
        done.meta_info.update(meta)
        self._count(meta, tokens, meta)
        done.finish_reason = finish_of(meta.get("finish_reason")) or done.finish_reason

    def _count(self, prompt: Mapping[str, Any], tokens: int | None, cached: Mapping[str, Any]) -> None:
        """Counts that an event tells; those that it does not tell stay."""
        done = self.completion
        done.prompt_tokens = whole_number(prompt.get("prompt_tokens", done.prompt_tokens))
        done.cached_tokens = whole_number(cached.get("cached_tokens", done.cached_tokens))
        done.completion_tokens = tokens if tokens is not None else done.completion_tokens

    def _native_output(self, text: str, ids: list[int] | None, tokens: int | None) -> None:
        """SGLang streams the whole output so far, or only what is new, depending on a server flag."""
        done = self.completion
        incremental = not text.startswith(done.text)
        if ids is not None:
            incremental = tokens is not None and len(ids) < tokens
            new = [int(i) for i in ids]
            done.output_ids = [*done.output_ids, *new] if incremental else new
        if incremental:
            done.text += text
        else:
            done.text = text or done.text

    def _openai(self, body: Mapping[str, Any], at_s: float) -> None:
        done = self.completion
        usage = body.get("usage") or {}
        tokens = whole_number(usage.get("completion_tokens"))
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
            self._count(usage, tokens, usage.get("prompt_tokens_details") or {})
        extra = (body.get("sglext") or {}).get("spec_tokens_details")
        if isinstance(extra, Mapping):
            done.meta_info.update(extra)
