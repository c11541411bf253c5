"""A store that operators share: the same screen over PostgreSQL, and through a network that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.graph.todolist import TodoList
from orchestrator.tui import app as app_module
from orchestrator.tui.dialogs import FormScreen
from tests.store.conftest import server_url  # noqa: F401  a private PostgreSQL server
from tests.store.postgres import new_database
from tests.transport.proxy import Proxy
from tests.tui.driving import opened, screen_text, until
from tests.tui.fixtures import Stage, stage


@pytest.fixture
def network(server_url: str) -> Iterator[Proxy]:  # noqa: F811
    """What lies between the screen and the server; the run itself is on the server's side of it."""
    port = urlsplit(server_url).port
    assert port is not None
    made = Proxy(("127.0.0.1", port))
    yield made
    made.close()


@pytest.fixture
def shared(server_url: str, network: Proxy, tmp_path: Path) -> Iterator[Stage]:  # noqa: F811
    near = new_database(server_url)
    made = stage(tmp_path, near)
    made.shared = near.replace(f":{urlsplit(near).port}/", f":{network.port}/")
    yield made
    made.store.close()


async def test_a_run_on_a_shared_store_is_followed_and_its_to_dos_are_changed(shared: Stage) -> None:
    async with opened(shared) as (app, pilot):
        shared.script.log("bench-budgets", "written by another operator")
        await until(pilot, lambda: "written by another operator" in screen_text(app))
        await pilot.press("w")
        await until(pilot, lambda: "works on it, step applying" in screen_text(app))
        await pilot.press("6", "a")
        await until(pilot, lambda: isinstance(app.screen, FormScreen))
        await pilot.press(*"Call Bo", "enter")
        await until(pilot, lambda: "Call Bo" in screen_text(app) and not isinstance(app.screen, FormScreen))
    assert "Call Bo" in [item.content for item in TodoList(shared.store).items()]


async def test_a_network_that_breaks_is_said_and_what_happened_meanwhile_comes_after(
    shared: Stage, network: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "SILENT_S", 0.5)
    async with opened(shared) as (app, pilot):
        network.silent.set()
        await until(pilot, lambda: "the store has not answered" in screen_text(app))
        before = app.run_view.task_tree.cursor
        await pilot.press("k")
        await until(pilot, lambda: app.run_view.task_tree.cursor == before - 1)
        await pilot.press("j")
        shared.script.log("bench-budgets", "while the network was away")
        network.cut()  # connections break; new ones find nobody who answers
        await until(pilot, lambda: app.banner.has_class("-shown"))
        network.silent.clear()
        network.cut()
        await until(pilot, lambda: "while the network was away" in screen_text(app))
        await until(pilot, lambda: not app.banner.has_class("-shown"))
