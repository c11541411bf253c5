"""Prompt sets: the project's own, and users' JSONL or plain text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import BaselineError

OWN_SETS = Path(__file__).resolve().parents[1] / "models" / "prompts"
TEXT_KEYS = ("text", "prompt", "question", "problem", "instruction", "input")
CHAT_KEYS = ("messages", "conversation", "conversations")


@dataclass(frozen=True)
class Prompt:
    """``text`` (continued as it is), ``messages`` (put through the tokenizer's chat template), or token ids as they are."""

    id: str
    category: str = ""
    text: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def encode(self, tokenizer: Any) -> list[int]:
        """Token ids for this tokenizer."""
        if self.ids:
            return list(self.ids)
        if not self.messages:
            return list(tokenizer(self.text)["input_ids"])
        if getattr(tokenizer, "chat_template", None) is None:
            joined = "\n".join(m["content"] for m in self.messages)
            return list(tokenizer(joined)["input_ids"])
        return list(tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, return_dict=False))


def load_prompts(path: Path | str) -> list[Prompt]:
    """Read a set: a name of the project's own ("code"), a JSONL, JSON or text file, or a folder of them.

    In a text file prompts are separated by lines of "---"; without such lines every line is a prompt.
    """
    source = Path(path)
    if not source.exists() and (OWN_SETS / f"{path}.jsonl").is_file():
        source = OWN_SETS / f"{path}.jsonl"
    if source.is_dir():
        files = sorted(p for p in source.iterdir() if p.suffix in (".jsonl", ".json", ".txt"))
        prompts = [prompt for file in files for prompt in _load_file(file)]
    else:
        prompts = _load_file(source)
    if not prompts:
        raise BaselineError(f"{source} holds no prompts: give a JSONL file with a text or messages per line.")
    return prompts


def _load_file(path: Path) -> list[Prompt]:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        names = ", ".join(sorted(p.stem for p in OWN_SETS.glob("*.jsonl")))
        raise BaselineError(f"{path} does not exist: name a file of prompts or one of {names}.") from error
    except (UnicodeDecodeError, OSError) as error:
        raise BaselineError(f"{path} is not a text file in UTF-8: {error}.") from error
    if path.suffix == ".jsonl":
        records = [(n, _json(path, n, line)) for n, line in enumerate(content.splitlines(), 1) if line.strip()]
    elif path.suffix == ".json":
        parsed = _json(path, 1, content)
        records = list(enumerate(parsed if isinstance(parsed, list) else [parsed], 1))
    else:
        records = list(enumerate(_split_text(content), 1))
    return [_prompt(path, number, record) for number, record in records]


def _json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BaselineError(f"{path} line {number} is not JSON ({error.msg}): mend or remove that line.") from error


def _split_text(content: str) -> list[str]:
    parts: list[list[str]] = [[]]
    lines = content.splitlines()
    if "---" not in [line.strip() for line in lines]:
        return [line for line in lines if line.strip()]
    for line in lines:
        if line.strip() == "---":
            parts.append([])
        else:
            parts[-1].append(line)
    return [text for text in ("\n".join(part).strip("\n") for part in parts) if text.strip()]


def _prompt(path: Path, number: int, record: Any) -> Prompt:
    name = f"{path.stem}-{number}"
    if isinstance(record, str):
        return Prompt(name, path.stem, record)
    if isinstance(record, dict):
        name = str(record.get("id", record.get("question_id", name)))
        category = str(record.get("category", path.stem))
        for key in CHAT_KEYS:
            if isinstance(record.get(key), list):
                return Prompt(name, category, messages=[_message(m) for m in record[key]])
        ids = record.get("input_ids")
        if isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids):
            return Prompt(name, category, ids=ids)
        turns = record.get("turns")
        if isinstance(turns, list) and turns:
            return Prompt(name, category, messages=[{"role": "user", "content": str(turns[0])}])
        for key in TEXT_KEYS:
            if isinstance(record.get(key), str) and record[key]:
                return Prompt(name, category, record[key])
    raise BaselineError(
        f"{path} record {number} has no prompt: give it one of {', '.join(TEXT_KEYS)}, messages or turns."
    )


def _message(raw: Any) -> dict[str, str]:
    if isinstance(raw, str):
        return {"role": "user", "content": raw}
    role = {"human": "user", "gpt": "assistant"}.get(raw.get("from", ""), raw.get("role", "user"))
    return {"role": role, "content": str(raw.get("content", raw.get("value", "")))}
