"""Prompt sets: JSONL with id, category and prompt, text or messages, or plain text with one prompt a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.openai.client import Client
from orchestrator.release.wheels import engine_folder


@dataclass(frozen=True)
class Prompt:
    """One prompt: text, chat messages, or token ids. Exactly one of the three is set.

    opened: content hash of the prompt that `opened_with` put words before; "" for a prompt as it came.
    """

    id: str
    category: str = "default"
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    input_ids: tuple[int, ...] | None = None
    opened: str = ""

    @property
    def content_hash(self) -> str:
        """Changes with the content, whatever the id is."""
        body = json.dumps([self.text, self.messages, self.input_ids], sort_keys=True, default=list)
        return hashlib.sha256(body.encode()).hexdigest()[:16]

    @property
    def own_hash(self) -> str:
        """The content hash without the words that `opened_with` put before it: the same in every pair and sweep."""
        return self.opened or self.content_hash

    def opened_with(self, tag: str) -> Prompt:
        """The same prompt behind a few words of its own, so that no server has its beginning in a prefix cache."""
        return replace(self._behind(tag), opened=self.own_hash)

    def _behind(self, tag: str) -> Prompt:
        if self.text is not None:
            return replace(self, text=f"{tag}\n{self.text}")
        if self.input_ids is not None:
            picks = hashlib.sha256(tag.encode()).digest()[:8]
            return replace(self, input_ids=(*(self.input_ids[p % len(self.input_ids)] for p in picks), *self.input_ids))
        first, *rest = self.messages or ()
        content = first.get("content", "")
        begun = f"{tag}\n{content}" if isinstance(content, str) else [{"type": "text", "text": tag}, *content]
        return replace(self, messages=({**first, "content": begun}, *rest))


# Never part of a shipped set, so a measured prompt can't already lie in the prefix cache after warming up.
WARM_UP = tuple(
    Prompt(id=f"warm-up-{i}", category="warm-up", text=text)
    for i, text in enumerate(
        (
            "Name three things that a lighthouse keeper checks before dusk.",
            "def area(width, height):\n    return",
            "A farmer has 17 hens and sells 5. How many are left?",
            "The shortest way from the harbour to the mill leads",
        )
    )
)


def set_hash(prompts: Sequence[Prompt]) -> str:
    """One fingerprint of a whole set, order included."""
    return hashlib.sha256("".join(p.content_hash for p in prompts).encode()).hexdigest()[:16]


def load_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """Read a set. UsageError names file and line for anything that is not a prompt; an empty set is refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} can't be read as a prompt set ({exc}); give a JSONL or text file.") from exc
    as_json = path.suffix == ".jsonl"
    prompts: list[Prompt] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            where = f"{path} line {number}"
            prompts.append(_from_json(line, where) if as_json else Prompt(id=f"line-{number}", text=line))
    if not prompts:
        raise UsageError(f"{path} holds no prompt; put one JSON object (or one line of text) per prompt.")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise UsageError(f"{path} uses the id {prompt.id!r} twice; ids must be unique.")
        seen.add(prompt.id)
    return prompts[:limit]


def shipped_sets() -> list[Path]:
    """The project's own prompt sets."""
    return sorted((engine_folder() / "models" / "prompts").glob("*.jsonl"))


def load_prompt_sets(paths: Sequence[Path], limit_each: int | None = None) -> list[Prompt]:
    """Several sets, dealt out in turn so that any first n prompts cover every category alike."""
    sets = [load_prompts(path, limit_each) for path in paths]
    width = max((len(s) for s in sets), default=0)
    return [s[i] for i in range(width) for s in sets if i < len(s)]


def _from_json(line: str, where: str) -> Prompt:
    try:
        raw = json.loads(line)
    except ValueError as exc:
        raise UsageError(f"{where} is not JSON ({exc}); one object per line is expected.") from exc
    if not isinstance(raw, dict) or "id" not in raw:
        raise UsageError(f"{where} has no id; each prompt needs id, category and prompt or messages.")
    kinds = [key for key in ("prompt", "text", "messages", "input_ids") if raw.get(key)]
    if len(kinds) != 1:
        raise UsageError(f"{where} must have exactly one of prompt (or text), messages and input_ids.")
    return Prompt(
        id=str(raw["id"]),
        category=str(raw.get("category", "default")),
        text=str(raw[kinds[0]]) if kinds[0] in ("prompt", "text") else None,
        messages=tuple(raw["messages"]) if kinds == ["messages"] else None,
        input_ids=tuple(int(i) for i in raw["input_ids"]) if kinds == ["input_ids"] else None,
    )


def native_prompt(client: Client, prompt: Prompt, model: str = "default") -> str | list[int]:
    """What the native endpoint takes for this prompt; messages go through the server's chat template.

    A server without a template (or tokenizer endpoint) gets the contents of the messages joined by newlines.
    """
    if prompt.input_ids is not None:
        return list(prompt.input_ids)
    if prompt.text is not None:
        return prompt.text
    return client.tokenize(prompt.messages or (), model) or plain_text(prompt)


def plain_text(prompt: Prompt) -> str:
    """The text of a prompt without any template."""
    if prompt.text is not None:
        return prompt.text
    return "\n".join(str(message.get("content", "")) for message in prompt.messages or ())
