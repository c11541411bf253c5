"""Files that several threads and processes write at once: always whole, no error, nothing left over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from orchestrator.documents import write_whole
from orchestrator.wholefile import replacing, replacing_folder

WRITERS = 8


def test_threads_that_write_one_file_at_once_never_meet(tmp_path: Path) -> None:
    path, together = tmp_path / "last.json", Barrier(WRITERS)
    texts = {str(writer) * 5000 for writer in range(WRITERS)}

    def write(text: str) -> None:
        for _ in range(20):
            together.wait(10)
            write_whole(path, text)

    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(write, texts):
            assert path.read_text() in texts
    assert [left.name for left in tmp_path.iterdir()] == ["last.json"]


def test_an_error_keeps_the_old_content_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("old")

    def breaks_off() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks_off()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_keep_one_folder_at_once_all_find_it_whole(tmp_path: Path) -> None:
    path, together = tmp_path / "bundle-1", Barrier(WRITERS)

    def keep(writer: int) -> list[str]:
        with replacing_folder(path) as part:
            part.mkdir()
            for name in ("a.whl", "b.whl"):
                (part / name).write_text("same")
            together.wait(10)
        return sorted(found.name for found in path.iterdir())

    with ThreadPoolExecutor(WRITERS) as pool:
        assert list(pool.map(keep, range(WRITERS))) == [["a.whl", "b.whl"]] * WRITERS
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bundle-2"
    path.write_text("a file is in the way")
    with pytest.raises(OSError), replacing_folder(path) as part:
        part.mkdir()
    assert list(tmp_path.iterdir()) == [path]
