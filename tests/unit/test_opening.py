"""What the first use of a host does is seen by everybody who watches the run, not only where it was started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import opening, operations
from orchestrator.graph.model import Action, Evidence, GraphSpec, Probe, TaskContext, TaskSpec
from orchestrator.hosts.inventory import HostConfig, Inventory
from orchestrator.operations import Workplace, run_graph
from orchestrator.store.store import open_store


class UsesTheHost(Action):
    def probe(self, ctx: TaskContext) -> Probe:
        return Probe(False, "nothing is known yet")

    def apply(self, ctx: TaskContext) -> Mapping[str, Any]:
        assert ctx.host.ready
        return {}

    def verify(self, ctx: TaskContext) -> Evidence:
        return Evidence("looked", "there")


def test_a_first_use_is_progress_of_the_task_that_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(ready=False, close=lambda: None)

    def provision(session: Any, progress: Any) -> None:
        for number in range(3):
            progress(f"package {number} from https://ada:hunter2@index", number, 3)
        session.ready = True

    monkeypatch.setattr(operations, "connect", lambda *given: session)
    monkeypatch.setattr(operations, "is_embedded_cpu", lambda session: True)
    monkeypatch.setattr(operations, "first_use", provision)
    monkeypatch.setattr(opening, "TELL_EVERY_S", 0.0)
    host = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")
    graph = GraphSpec("look", (TaskSpec("look", "Look at the host", "look", UsesTheHost()),))
    said: list[str] = []
    heard: list[str] = []
    with open_store(f"sqlite:///{tmp_path / 'state.db'}") as store:
        place = Workplace(
            tmp_path, Inventory(hosts={"local": host}), store, progress=lambda text, *_: said.append(text)
        )
        place.masker.add("hunter2")
        result = run_graph(place, graph, host, {}, on_event=lambda event: heard.append(event.kind))
        told = [event for event in store.events.tail(0, result.run_id) if event.kind == "progress"]
    assert result.exit_code == 0, result.reason
    assert [event.task_key for event in told] == ["look"] * 3
    assert told[2].data["text"].startswith("first use of the host: package 2 from")
    assert (told[2].data["done"], told[2].data["total"]) == (2, 3)
    assert not any("hunter2" in str(event.data) for event in told)
    assert [text.split(" from ")[0] for text in said] == ["package 0", "package 1", "package 2"]
    assert "task.completed" in heard
