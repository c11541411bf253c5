"""Uploads over sftp: a temporary name beside the target, resumed if left, checked on the host, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import posixpath
import uuid
from typing import BinaryIO

import paramiko

PIECE = 32 * 1024
RESUME_FROM = 1 << 20  # smaller files start over: finding out costs as much as sending them

# $1 part, $2 target, $3 mode, $4 SHA-256: anything but equal content leaves the target alone (exit 74).
FINISH = (
    'set -e; have=$(sha256sum < "$1" | cut -d" " -f1); [ "$have" = "$4" ] || { rm -f "$1"; exit 74; }; '
    'chmod "$3" "$1"; sync "$1" 2>/dev/null || sync; mv -fT "$1" "$2"'
)
# The same through root: the part lies in a folder of the user and reaches the target's folder as a copy.
FINISH_AS_ROOT = (
    'set -e; have=$(sha256sum < "$1" | cut -d" " -f1); [ "$have" = "$4" ] || exit 74; '
    'new="$2.orchestrate-part"; cp "$1" "$new"; chmod "$3" "$new"; sync "$new" 2>/dev/null || sync; mv -fT "$new" "$2"'
)
CORRUPT = 74


def part_name(remote: str, digest: str, size: int) -> str:
    """A name beside the target; for big files the same each time, so that an interrupted upload is found again."""
    tag = digest[:16] if size >= RESUME_FROM else uuid.uuid4().hex[:16]
    folder, name = posixpath.split(remote)
    return posixpath.join(folder, f".{name}.{tag}.part")


def sha256_of(source: BinaryIO) -> tuple[str, int]:
    """(hex digest, bytes) of a seekable source, which is rewound."""
    hasher, size = hashlib.sha256(), 0
    while piece := source.read(1 << 20):
        hasher.update(piece)
        size += len(piece)
    source.seek(0)
    return hasher.hexdigest(), size


def send(sftp: paramiko.SFTPClient, source: BinaryIO, part: str, size: int) -> int:
    """Write source to `part`, continuing where an earlier try ended. Returns how many bytes were skipped."""
    offset = 0
    if size >= RESUME_FROM:
        with contextlib.suppress(OSError):
            offset = sftp.stat(part).st_size or 0
        if offset > size:
            offset = 0
    source.seek(offset, io.SEEK_SET)
    with sftp.open(part, "ab" if offset else "wb") as target:
        target.chmod(0o600)  # nobody else reads a secret while it arrives; the final mode comes with the rename
        target.set_pipelined(True)
        while piece := source.read(PIECE):
            target.write(piece)
    return offset
