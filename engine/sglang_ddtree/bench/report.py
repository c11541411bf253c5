"""Result files: what ran, where, on which code, with every row."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ENGINE = Path(__file__).resolve().parents[2]
IGNORED = {"__pycache__", "build", ".pytest_cache"}


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.lru_cache(maxsize=1)
def driver() -> str:
    """The NVIDIA driver's version, or an empty string."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            .stdout.split("\n")[0]
            .strip()
        )
    except (OSError, subprocess.SubprocessError):
        return ""


def tree_hash(folder: Path = ENGINE / "sglang_ddtree") -> str:
    """The hash git gives this folder (``git rev-parse HEAD:engine/sglang_ddtree``), made from the files themselves.

    It needs no git and no checkout, so a result from a GPU host names the code it measured.
    """
    entries = []
    for path in folder.iterdir():
        if path.name in IGNORED or path.suffix in (".pyc", ".egg-info"):
            continue
        if path.is_dir():
            if any(child.name not in IGNORED for child in path.iterdir()):
                entries.append((f"{path.name}/", b"40000", path.name, bytes.fromhex(tree_hash(path))))
        else:
            mode = b"100755" if os.access(path, os.X_OK) else b"100644"
            entries.append((path.name, mode, path.name, _git_hash(b"blob", path.read_bytes())))
    body = b"".join(mode + b" " + name.encode() + b"\0" + digest for _, mode, name, digest in sorted(entries))
    return _git_hash(b"tree", body).hex()


def _git_hash(kind: bytes, body: bytes) -> bytes:
    return hashlib.sha1(kind + b" " + str(len(body)).encode() + b"\0" + body, usedforsecurity=False).digest()


def write_result(path: Path, kind: str, rows: list[dict[str, Any]], log: str = "", **extra: Any) -> None:
    """Writes one result document (kind: selftest, kernel, step or serve)."""
    document = {
        "kind": kind,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "driver": driver(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "sglang": version_of("sglang"),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "tree_hash": tree_hash(),
        "rows": rows,
        "log": log,
        **extra,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
