"""Digest of a folder, or how two folders differ: {"path": DIR} or {"source": DIR, "clone": DIR}.

{"path"} prints {"sha256", "files", "bytes"}: over every path, kind, mode, link target and content, so that any change
shows. With "skip_bytecode" compiled files do not count. {"source", "clone"} prints {"added": [{path, sha256, bytes}],
"changed": [...], "removed": [...]}; two links to one content are equal without being read.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator  # noqa: UP035 - Python 3.8

PIECE = 1 << 20


def walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(folders + files):
            full = os.path.join(folder, name)
            yield os.path.relpath(full, root), os.lstat(full)


def content_hash(path: str) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while True:
            piece = file.read(PIECE)
            if not piece:
                return hasher.hexdigest()
            hasher.update(piece)


def hash_many(paths: list[str]) -> list[str]:
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(content_hash, paths))


def digest(root: str, skip_bytecode: bool) -> dict[str, Any]:
    entries = [
        (name, facts)
        for name, facts in walk(root)
        if not (skip_bytecode and ("__pycache__" in name.split(os.sep) or name.endswith(".pyc")))
    ]
    plain = [name for name, facts in entries if stat.S_ISREG(facts.st_mode)]
    hashes = dict(zip(plain, hash_many([os.path.join(root, name) for name in plain])))  # noqa: B905 - Python 3.8
    total = hashlib.sha256()
    size = 0
    for name, facts in entries:
        what = hashes.get(name, "")
        if stat.S_ISLNK(facts.st_mode):
            what = "-> " + os.readlink(os.path.join(root, name))
        if name in hashes:
            size += facts.st_size
        total.update(f"{name}\0{facts.st_mode:o}\0{what}\n".encode("utf-8", "surrogateescape"))
    return {"sha256": total.hexdigest(), "files": len(plain), "bytes": size}


def differences(source: str, clone: str) -> dict[str, Any]:
    before = dict(walk(source))
    after = dict(walk(clone))
    added, changed = [], []
    for name, facts in after.items():
        if stat.S_ISDIR(facts.st_mode):
            continue
        old = before.get(name)
        if old is None:
            added.append(name)
        elif stat.S_ISLNK(facts.st_mode) or stat.S_ISLNK(old.st_mode):
            if not same_link(os.path.join(source, name), os.path.join(clone, name), source, clone):
                changed.append(name)
        elif (old.st_dev, old.st_ino) != (facts.st_dev, facts.st_ino) and (
            old.st_size != facts.st_size
            or content_hash(os.path.join(source, name)) != content_hash(os.path.join(clone, name))
        ):
            changed.append(name)
    gone = sorted(name for name, facts in before.items() if name not in after and not stat.S_ISDIR(facts.st_mode))
    return {"added": describe(clone, added), "changed": describe(clone, changed), "removed": gone}


def same_link(one: str, other: str, source: str, clone: str) -> bool:
    if not (os.path.islink(one) and os.path.islink(other)):
        return False
    first, second = os.readlink(one), os.readlink(other)
    return first == second or first.replace(source, clone, 1) == second


def describe(root: str, names: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in sorted(names):
        full = os.path.join(root, name)
        if os.path.islink(full):
            rows.append({"path": name, "link": os.readlink(full)})
        else:
            rows.append({"path": name, "sha256": content_hash(full), "bytes": os.path.getsize(full)})
    return rows


def main() -> None:
    wish: dict[str, Any] = json.loads(sys.argv[1])
    if "path" in wish:
        if not os.path.isdir(wish["path"]):
            sys.exit(f"{wish['path']} is no folder")
        print(json.dumps(digest(wish["path"], bool(wish.get("skip_bytecode")))))
    else:
        print(json.dumps(differences(os.path.realpath(wish["source"]), os.path.realpath(wish["clone"]))))


if __name__ == "__main__":
    main()
