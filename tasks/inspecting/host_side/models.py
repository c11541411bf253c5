"""Tensor tables and digests of the tokenizer and (of small models) the weights of a model folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from tasks.inspecting.host_side.base import Facts, read

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
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            text = file.read(size) if 2 <= size <= MAX_HEADER_BYTES else b""
        entries = json.loads(text)
        return {k: [v["dtype"], v["shape"]] for k, v in entries.items() if k != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def weights_digest(root: str) -> str | None:
    """Identity of a model's weights as oracle baselines state it; None for large ones, which no baseline here is of."""
    names = sorted(name for name in os.listdir(root) if name.endswith(".safetensors"))
    hasher = hashlib.sha256()
    try:
        if not names or sum(os.path.getsize(os.path.join(root, name)) for name in names) > MAX_HASHED_BYTES:
            return None
        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                content = file.read()
            hasher.update(f"{name}\0{len(content)}\0".encode() + content)
    except OSError:
        return None
    return hasher.hexdigest()


def tokenizer_digest(root: str) -> dict[str, Any] | None:
    """tokenizer.json with its vocabulary replaced by a hash: enough to compare two; None without a readable one."""
    path = os.path.join(root, "tokenizer.json")
    try:
        if os.path.getsize(path) > MAX_TOKENIZER_BYTES:
            return None
        with open(path, "rb") as file:
            tokenizer = json.loads(file.read().decode("utf-8"))
        vocabulary = json.dumps(tokenizer.get("model", {}).get("vocab"), sort_keys=True)
        added = [{"content": t["content"], "id": t["id"]} for t in tokenizer.get("added_tokens", [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
