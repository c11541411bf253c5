"""Tensor tables and digests of the tokenizer and (of small models) the weights of a model folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from tasks.inspecting.host_side.base import Facts, read, read_bytes

MAX_HEADER_BYTES = 100 << 20
MAX_TOKENIZER_BYTES = 64 << 20
MAX_HASHED_BYTES = 64 << 20


def tensor_table(root: str) -> Facts:
    """{tensor: [dtype, shape]} from the headers of all *.safetensors; files that can't be read are left out."""
    table: Facts = {}
    for name in sorted(os.listdir(root)):
        if name.endswith(".safetensors"):
            table.update(header(os.path.join(root, name)))
    return table


def header(path: str) -> Facts:
    """The table of one file; {} when it is no safetensors file."""
    size = int.from_bytes(read_bytes(path, 8) or b"", "little")
    text = (read_bytes(path, 8 + size) or b"")[8:] if 2 <= size <= MAX_HEADER_BYTES else b""
    try:
        entries = json.loads(text)
        return {k: [v["dtype"], v["shape"]] for k, v in entries.items() if k != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def weights_digest(root: str) -> str | None:
    """Identity of a model's weights as oracle baselines state it; None for large ones, which no baseline here is of."""
    names = sorted(name for name in os.listdir(root) if name.endswith(".safetensors"))
    sizes = [os.path.getsize(path) for path in (os.path.join(root, name) for name in names) if os.path.isfile(path)]
    if not names or len(sizes) < len(names) or sum(sizes) > MAX_HASHED_BYTES:
        return None
    hasher = hashlib.sha256()
    for name in names:
        content = read_bytes(os.path.join(root, name), MAX_HASHED_BYTES)
        if content is None:
            return None
        hasher.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return hasher.hexdigest()


def tokenizer_digest(root: str) -> dict[str, Any] | None:
    """tokenizer.json with its vocabulary replaced by a hash: enough to compare two; None without a readable one."""
    data = read_bytes(os.path.join(root, "tokenizer.json"), MAX_TOKENIZER_BYTES + 1)
    if data is None or len(data) > MAX_TOKENIZER_BYTES:
        return None
    try:
        tokenizer = json.loads(data.decode("utf-8"))
        vocabulary = json.dumps(tokenizer.get("model", {}).get("vocab"), sort_keys=True)
        added = [{"content": t["content"], "id": t["id"]} for t in tokenizer.get("added_tokens", [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {"model": {"vocab": hashlib.sha256(vocabulary.encode()).hexdigest()}, "added_tokens": added}


def snapshot(name: str, hubs: list[str]) -> str | None:
    """The folder of a repository name (`owner/model`) in a download cache: what `main` points to, else the newest."""
    if not re.match(r"^[\w.-]+/[\w.-]+$", name):
        return None
    for hub in hubs:
        base = os.path.join(hub, "models--" + name.replace("/", "--"))
        commit = (read(os.path.join(base, "refs", "main")) or "").strip()
        named = os.path.join(base, "snapshots", commit)
        if commit and os.path.isdir(named):
            return named
        try:
            folders = [entry.path for entry in os.scandir(os.path.join(base, "snapshots")) if entry.is_dir()]
        except OSError:
            continue
        if folders:
            return max(folders, key=os.path.getmtime)
    return None
