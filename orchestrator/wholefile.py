"""Files that are replaced whole: a reader sees the old content or the new one, never a part of either.

Whoever writes what it read before goes in alone, or what others wrote meanwhile would be lost.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_EVERY_S = 0.05


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a sibling to write, which takes the place of `path` when the block ends without an error.

    The sibling's name is this call's own, so threads and processes may write the same path at once: the last one
    wins. After an error `path` is as it was and the sibling is gone.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields the name of a sibling folder to make, which is kept as `path` when the block ends without an error.

    Whoever comes first stays: its content must be told by its name (a hash, a release), since what another call
    made meanwhile is used instead of this one's.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        try:
            part.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def alone_in(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One thread of one process at a time for a folder of this machine; `waiting` is called again and again until then.

    The lock is on the folder itself, so nothing is left in it, and it ends with a process that is killed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while not _locked(descriptor):
            waiting()
            time.sleep(LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
