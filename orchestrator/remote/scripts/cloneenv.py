"""Clones a virtual environment with hard links: {"source": DIR, "target": DIR, "margin_bytes": N}.

Contents are shared with the live environment, so nothing in the clone is ever edited in place: a file that must differ
is written new and renamed over its link. Across file systems the contents are copied. On any error the target goes.
Prints {"mode": "link"|"copy", "files": N, "bytes": N, "rewritten": [...], "outside": [...]}.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import json
import os
import shutil
import sys
from typing import Any, Iterator  # noqa: UP035 - Python 3.8

LINK_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
TEXT_LIMIT = 8 << 20
ROOM_FOR_CHANGES = 64 << 20


def walk(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry below root with its relative path, folders before their content."""
    stack = [""]
    while stack:
        folder = stack.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                relative = os.path.join(folder, entry.name)
                yield relative, entry
                if entry.is_dir(follow_symlinks=False):
                    stack.append(relative)


def replace_file(path: str, content: bytes, like: str) -> None:
    """Write beside and rename: the link's other end keeps its content."""
    part = path + ".orchestrate-part"
    with open(part, "wb") as file:
        file.write(content)
    shutil.copymode(like, part)
    os.replace(part, path)


def names_prefix(relative: str) -> bool:
    """Whether a file of this kind may hold the environment's own path and has to follow it."""
    name = os.path.basename(relative)
    top = relative.split(os.sep)[0]
    return top in ("bin", "Scripts") or name == "pyvenv.cfg" or name.endswith((".pth", ".egg-link"))


def check_room(source: str, target_parent: str, margin: int) -> tuple[bool, int]:
    """(can link, bytes needed); exits with a sentence when the disk is too full."""
    linkable = os.stat(source).st_dev == os.stat(target_parent).st_dev
    total = sum(entry.stat(follow_symlinks=False).st_size for _, entry in walk(source) if entry.is_file())
    need = margin + (ROOM_FOR_CHANGES if linkable else total)
    room = os.statvfs(target_parent)
    free = room.f_bavail * room.f_frsize
    if free < need:
        sys.exit(
            f"{target_parent} has {free >> 20} MiB free, the clone of {source} needs {need >> 20} MiB; "
            "free space or prune old releases"
        )
    return linkable, total


class Clone:
    """One run of the clone; counts what it did."""

    def __init__(self, source: str, target: str, link: bool) -> None:
        self.source, self.target, self.link = source, target, link
        self.files = self.bytes = 0
        self.rewritten: list[str] = []
        self.outside: list[str] = []

    def run(self) -> None:
        os.mkdir(self.target)
        for relative, entry in walk(self.source):
            into = os.path.join(self.target, relative)
            if entry.is_symlink():
                self.symlink(entry.path, into)
            elif entry.is_dir():
                os.mkdir(into)
                shutil.copymode(entry.path, into)
            elif entry.is_file():
                self.file(relative, entry.path, into)
                self.files += 1
                self.bytes += entry.stat().st_size
                if self.files % 5000 == 0:
                    print(f"{self.files} files", flush=True)
        self.fix_records()

    def symlink(self, path: str, into: str) -> None:
        points = os.readlink(path)
        if points.startswith(self.source + os.sep):
            points = self.target + points[len(self.source) :]
        os.symlink(points, into)

    def file(self, relative: str, path: str, into: str) -> None:
        if self.link:
            try:
                os.link(path, into)
            except OSError as error:
                if error.errno not in LINK_REFUSED:
                    raise
                self.link = False
        if not self.link:
            shutil.copy2(path, into)
        if names_prefix(relative) and os.path.getsize(path) < TEXT_LIMIT:
            self.rewrite(relative, path, into)

    def rewrite(self, relative: str, path: str, into: str) -> None:
        with open(path, "rb") as file:
            before = file.read()
        after = before.replace(self.source.encode(), self.target.encode())
        if relative.endswith((".pth", ".egg-link")):
            lines = before.decode("utf-8", "replace").splitlines()
            self.outside += [
                line for line in lines if line.startswith("/") and not line.startswith(self.source + os.sep)
            ]
        if after != before:
            replace_file(into, after, path)
            self.rewritten.append(relative)

    def fix_records(self) -> None:
        """RECORD files list hashes of the rewritten scripts: give them the new ones."""
        changed = {os.path.join(self.target, relative) for relative in self.rewritten}
        for relative, entry in list(walk(self.target)):
            if entry.name != "RECORD" or not relative.endswith(os.path.join(".dist-info", "RECORD")):
                continue
            base = os.path.dirname(os.path.dirname(entry.path))
            with open(entry.path, encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))
            touched = False
            for row in rows:
                full = os.path.normpath(os.path.join(base, row[0])) if row else ""
                if full in changed:
                    with open(full, "rb") as file_bytes:
                        content = file_bytes.read()
                    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    row[1:] = [f"sha256={digest}", str(len(content))]
                    touched = True
            if touched:
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(rows)
                replace_file(entry.path, text.getvalue().encode(), entry.path)
                self.rewritten.append(relative)


def main() -> None:
    wish: dict[str, Any] = json.loads(sys.argv[1])
    source, target = os.path.realpath(wish["source"]), os.path.abspath(wish["target"])
    if os.path.lexists(target):
        sys.exit(f"{target} exists already; remove it first")
    linkable, total = check_room(source, os.path.dirname(target), int(wish.get("margin_bytes", 0)))
    clone = Clone(source, target, linkable and not wish.get("copy"))
    try:
        clone.run()
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        sys.exit(f"cloning {source} failed ({what}) and its traces were removed; free space and run again")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    print(
        json.dumps(
            {
                "mode": "link" if clone.link else "copy",
                "files": clone.files,
                "bytes": total,
                "rewritten": clone.rewritten,
                "outside": clone.outside,
            }
        )
    )


if __name__ == "__main__":
    main()
