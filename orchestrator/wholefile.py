"""Files that are replaced whole: a reader sees the old content or the new one, never a part of either."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
