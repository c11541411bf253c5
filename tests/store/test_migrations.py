"""The migrations make exactly the declared tables, from nothing and from every earlier schema."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlmodel import SQLModel

from orchestrator.store import tables  # noqa: F401  fills the metadata
from orchestrator.store.migrate import alembic_config, migrate_postgres, migrate_sqlite
from orchestrator.store.schema import REVISIONS
from orchestrator.store.store import Store, open_store
from tests.store.postgres import new_database


def test_the_migrations_make_the_declared_tables(store: Store, store_url: str) -> None:
    engine = create_engine(store_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, SQLModel.metadata)
    engine.dispose()
    assert differences == []


def test_the_list_of_revisions_is_that_of_the_scripts() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(REVISIONS))


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_older_store_comes_forward_and_is_copied_first(revision: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    migrate_sqlite(path, revision)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO runs (id, graph, host, state, reason, settings_json, definition, process, started_by,"
            " started_from, created_at) VALUES ('r1', 'g', 'h', 'completed', '', '{}', 'd', '', 'ada', '/', 5),"
            " ('r2', 'g', 'h', 'completed', '', '{}', 'd', '', 'ada', '/', 4)"
        )
        connection.execute(
            "INSERT INTO tasks (run_id, key, position, content, phase, priority, host, depends_on_json, changes_host,"
            " state, step, began, attempts, reason, version)"
            " VALUES ('r1', 'a', 0, 'c', 'p', 'high', 'h', '[]', 0, 'pending', '', 0, 0, '', 0)"
        )
    connection.close()
    with open_store(f"sqlite:///{path}") as store:
        assert store.runs.get("r1").started_by == "ada"
        assert store.tasks.get("r1", "a").content == "c"
        assert [run.id for run in store.runs.list()] == ["r1", "r2"]
        store.runs.create("r3", "g", "h", "d", {})
        assert store.runs.latest("h", "g") == store.runs.get("r3")
    (backup,) = tmp_path.glob(f"state.db.backup-{revision}-*")
    copy = sqlite3.connect(backup)
    assert copy.execute("SELECT version_num FROM alembic_version").fetchone() == (revision,)
    assert copy.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
    copy.close()


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_older_shared_store_comes_forward(revision: str, server_url: str) -> None:
    url = new_database(server_url)
    migrate_postgres(url, "the server of this test", revision)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(
            "INSERT INTO runs (id, graph, host, state, reason, settings_json, definition, process, started_by,"
            " started_from, created_at) VALUES ('r1', 'g', 'h', 'completed', '', '{}', 'd', '', 'ada', '/', 5)"
        )
    with open_store(url) as store:
        assert store.runs.get("r1").started_by == "ada"
        store.runs.create("r2", "g", "h", "d", {})
        assert [run.id for run in store.runs.list()] == ["r2", "r1"]


def test_several_processes_may_open_a_new_store_at_once(store_url: str) -> None:
    code = f"from orchestrator.store.store import open_store\nopen_store({store_url!r}).events.append(None, None, 'x')"
    children = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [0] * 4, errors
    with open_store(store_url) as store:
        assert store.events.count() == 4


def test_reading_a_store_needs_neither_sqlalchemy_nor_pydantic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    open_store(url).close()
    code = (
        "import sys; from orchestrator.store.store import open_store; open_store(sys.argv[1]).runs.list();"
        "print([name for name in ('sqlalchemy', 'sqlmodel', 'alembic', 'pydantic', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
