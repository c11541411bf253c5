"""The SQLite file in trouble: each time one sentence, exit code 2, and nothing overwritten."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ExitCode, StoreError, UsageError
from orchestrator.store.migrate import migrate_sqlite
from orchestrator.store.schema import HEAD, REVISIONS
from orchestrator.store.store import Store, open_store, open_to_read
from tests.store.conftest import add_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a run in it."""
    path = tmp_path / "state.db"
    with open_store(f"sqlite:///{path}") as store:
        add_run(store)
    return path


def refused(path: Path, **options: bool) -> str:
    with pytest.raises(StoreError) as error:
        open_store(f"sqlite:///{path}", **options)
    assert error.value.exit_code == ExitCode.USAGE
    assert "\n" not in str(error.value)
    return str(error.value)


def fill(store: Store, written: list[int]) -> None:
    """Appends events until that fails; `written` holds those that were acknowledged."""
    written.extend(store.events.append("r1", None, "log", {"line": "x" * 500}).seq for _ in range(10_000))


def test_text_in_place_of_a_store_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("these are notes, not a database\n" * 100)
    assert "not a readable store" in refused(path)
    kept = list(tmp_path.glob("state.db.corrupt-*"))
    assert [item.read_text()[:5] for item in kept] == ["these"]
    assert not path.exists()
    open_store(f"sqlite:///{path}").close()  # the next start has a clean place


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_store_is_kept_aside(path: Path, damage: str) -> None:
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:half] if damage == "cut" else data[:4096] + b"\xa5" * half + data[4096 + half :])
    before = path.read_bytes()
    assert "corrupt" in refused(path)
    (kept,) = path.parent.glob("state.db.corrupt-*")
    assert kept.read_bytes() == before


def test_a_reader_leaves_a_damaged_store_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("x" * 5000)
    assert refused(path, read_only=True).endswith("restore a copy of it, or choose another store with --state")
    assert path.read_text() == "x" * 5000
    assert list(tmp_path.iterdir()) == [path]


def test_a_newer_store_is_refused_untouched(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = path.read_bytes()
    assert "newer than this version reads" in refused(path)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.backup-*"))


def test_a_file_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    before = path.read_bytes()
    assert "tables of another program" in refused(path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir() if "corrupt" in item.name] == []


def test_a_file_of_another_kind_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: {}\n" * 100)
    assert "no store but another file" in refused(path)
    assert [item.name for item in tmp_path.iterdir()] == ["hosts.yaml"]
    assert path.read_text() == "hosts: {}\n" * 100


@pytest.mark.parametrize("damage", ["random bytes", "zeros", "a few bytes"])
def test_a_log_of_changes_that_cannot_be_read_is_not_passed_over(path: Path, damage: str) -> None:
    log = path.with_name("state.db-wal")
    with open_store(f"sqlite:///{path}") as store:
        store.events.append("r1", None, "log", {})
        data = log.read_bytes()
        copy = path.parent / "copy" / "state.db"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
    assert len(data) > 1000
    damaged = {"random bytes": b"\xa5" * len(data), "zeros": bytes(len(data)), "a few bytes": data[:10]}[damage]
    copy.with_name("state.db-wal").write_bytes(damaged)
    if damage == "random bytes":
        assert "its newest changes, in state.db-wal, cannot be read): restore a copy of it" in refused(
            copy, read_only=True
        )
        assert "cannot be read): it was kept as" in refused(copy)
        assert {item.name.split("-2")[0] for item in copy.parent.iterdir()} == {"state.db.corrupt"}
    else:  # what a power cut leaves: nothing of that log was ever acknowledged as written to the disk
        with open_store(f"sqlite:///{copy}") as store:
            assert store.runs.get("r1").id == "r1"


def test_a_missing_folder_and_a_wrong_url(tmp_path: Path) -> None:
    assert "cannot be opened" in refused(tmp_path / "nowhere" / "state.db")
    with pytest.raises(UsageError, match="write sqlite:///FILE"):
        open_store("mysql://localhost/x")
    for folder in ("sqlite:///", f"sqlite:///{tmp_path}"):
        with pytest.raises(UsageError, match="that is a folder"):
            open_store(folder)
    assert "no store" in refused(tmp_path / "state.db", read_only=True)


def test_a_file_name_is_taken_as_it_is(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/of 100% ?mode=ro #1.db") as store:
        add_run(store)
    assert (tmp_path / "of 100% ?mode=ro #1.db").exists()


def test_a_full_disk_loses_nothing(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        pages = store.database._take()
        used = pages.execute("PRAGMA page_count").fetchone()[0]
        pages.execute(f"PRAGMA max_page_count = {used + 1}")
        store.database._give_back(pages)
        written: list[int] = []
        with pytest.raises(StoreError, match=r"disk .* is full") as error:
            fill(store, written)
        assert error.value.exit_code == ExitCode.USAGE
        assert store.events.count() == len(written)
    with open_store(f"sqlite:///{path}") as store:
        assert store.events.count() == len(written)
        store.events.append("r1", None, "log", {})


def test_a_read_only_folder(path: Path) -> None:
    copy = path.parent / "elsewhere"
    copy.mkdir()
    target = copy / "state.db"
    target.write_bytes(path.read_bytes())
    target.chmod(0o444)
    copy.chmod(0o555)
    pid = os.fork()
    if pid == 0:  # as an ordinary user: root may write everywhere
        code = 1
        try:
            if os.geteuid() == 0:
                os.chmod(path.parent, 0o755)
                _open_the_way(path.parent)
                os.setuid(65534)
            with open_store(f"sqlite:///{target}", read_only=True) as store:
                assert store.runs.get("r1").id == "r1"
            message = refused(target)
            code = 0 if "read-only" in message or "cannot be opened" in message else 2
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    copy.chmod(0o755)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_reader_needs_no_room_for_files_of_its_own(path: Path) -> None:
    path.with_name("state.db-shm").symlink_to("/nowhere/at/all")  # as on a full disk, it cannot be made
    with open_to_read(f"sqlite:///{path}") as store:
        assert store.runs.get("r1").id == "r1"
    refused(path)


def test_a_reader_makes_a_missing_store_and_brings_an_old_one_forward(tmp_path: Path) -> None:
    with open_to_read(f"sqlite:///{tmp_path}/new.db") as store:
        assert store.runs.latest() is None
    migrate_sqlite(tmp_path / "old.db", REVISIONS[0])
    with open_to_read(f"sqlite:///{tmp_path}/old.db") as store:
        assert store.runs.latest() is None


def test_the_schema_version_is_recorded(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def _open_the_way(folder: Path) -> None:
    """Lets another user pass through pytest's private folders."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o055)


def test_a_store_that_is_opened_twice_here_still_sees_what_others_write(path: Path) -> None:
    """Whoever reads the file beside the database ends its locks, and the next process takes its log away."""
    url = f"sqlite:///{path}"
    writes = (
        "from orchestrator.store.store import open_store\n"
        f"with open_store({url!r}) as store: store.events.append('r1', None, 'log', {{'line': 'from elsewhere'}})"
    )
    with open_store(url) as store:
        before = store.events.count()
        open_store(url, read_only=True).close()
        open_store(url).close()
        for number in (1, 2):
            subprocess.run([sys.executable, "-c", writes], check=True)
            assert store.events.count() == before + number
        store.events.append("r1", None, "log", {"line": "from here"})
    with open_store(url) as store:
        assert store.events.count() == before + 3
