"""The first use of an embedded host: two processes never provision it at once, nor one while a run works there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import operations
from orchestrator.hosts import first_use, lock
from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import open_session
from orchestrator.remote.pip import Progress
from orchestrator.remote.provision_cpu import CpuHost
from orchestrator.transport.embedded import remove_embedded

CONFIG = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model="tiny-hybrid")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    try:
        yield tmp_path
    finally:
        remove_embedded(tmp_path, "local")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of hosts on which something was installed: that itself takes minutes, and is only noted."""
    hosts: list[str] = []

    def install(host: CpuHost, folder: Path, progress: Progress) -> list[str]:
        hosts.append(host.unit)
        return ["environment"]

    monkeypatch.setattr(first_use, "provision_environment", install)
    monkeypatch.setattr(first_use, "provision_models", lambda host, progress: [])
    monkeypatch.setattr(first_use, "provision_services", lambda session, progress, restart: [])
    monkeypatch.setattr(first_use, "require_free_port", lambda session, port, setting: None)
    return hosts


def test_a_host_on_which_a_run_works_is_left_as_it_is(
    home: Path, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with open_session(CONFIG, home) as session:
        first_use.first_use(session, lambda text, done, total: said.append(text))
        monkeypatch.setattr(first_use.wheels, "source_hash", lambda folder: "edited")
        lock.take(session.releases, "r-one")
        assert first_use.first_use(session, lambda text, done, total: said.append(text)) == []
        assert (len(installed), len(said)) == (1, 1)
        assert "left as it is while a run works there" in said[0]
        lock.release(session.releases, "r-one")
        assert first_use.first_use(session, lambda text, done, total: None) == ["environment"]


def test_two_at_once_provision_one_after_the_other(
    home: Path, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions, as two processes have them."""
    at_work: list[str] = []
    waited: list[str] = []

    def install(host: CpuHost, folder: Path, progress: Progress) -> list[str]:
        at_work.append("begin")
        deadline = time.monotonic() + 10
        while not waited and time.monotonic() < deadline:
            time.sleep(0.01)
        at_work.append("end")
        return ["environment"]

    monkeypatch.setattr(first_use, "provision_environment", install)

    def use(_: int) -> list[str]:
        with open_session(CONFIG, home) as session:
            return first_use.first_use(session, lambda text, done, total: waited.append(text))

    with ThreadPoolExecutor(2) as pool:
        changed = list(pool.map(use, range(2)))
    assert at_work == ["begin", "end"]
    assert sorted(changed) == [[], ["environment"]]
    assert set(waited) == {"waiting for another process that makes this host ready"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deploy-ddtree", {}),
        ("deploy-dflash", {}),
        ("inspect", {}),
        ("smoke", {}),
        ("bench", {}),
        ("rollback", {}),
        ("bench", {"oracle": True}),
    ],
)
def test_a_first_task_has_time_to_make_the_host_over_a_slow_network(name: str, options: dict[str, bool]) -> None:
    graph = operations.build_graph(name, CONFIG, {}, options)
    first = [task for task in graph.tasks if not task.depends_on]
    assert first
    assert all(task.timeout_s >= 3600 for task in first)
