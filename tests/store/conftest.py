"""Every store test runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.graph.model import Action, TaskSpec
from orchestrator.store.store import Store, open_store
from tests.store.postgres import binaries, new_database, postgres_server


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    if binaries() is None:
        message = "no PostgreSQL server is installed: apt-get install postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    return new_database(request.getfixturevalue("server_url"))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def add_run(store: Store, run_id: str = "r1", keys: tuple[str, ...] = ("a", "b"), host: str = "local") -> None:
    """A run whose tasks follow one another."""
    specs = [
        TaskSpec(key, f"Do {key}", "phase", Action(), keys[index - 1 : index] if index else ())
        for index, key in enumerate(keys)
    ]
    with store.transaction():
        store.runs.create(run_id, "graph", host, "definition", {"a": "b"})
        store.tasks.create(run_id, specs, host)
