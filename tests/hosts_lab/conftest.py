"""Hosts for the tests of this folder. Outside the lab's network nothing is collected: `make hosts-test` enters it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from orchestrator.hosts.session import HostSession, open_session
from tests.hosts_lab import lab, scene

collect_ignore_glob = [] if os.environ.get(lab.INSIDE) else ["test_*.py", "more/*.py"]

OpenSession = Callable[..., AbstractContextManager[HostSession]]


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[lab.LabHost]:
    """A fresh host with the linear service of the scene."""
    name = f"h{abs(hash(request.node.nodeid)) % 100000}"
    host = scene.host(name)
    try:
        yield host
    finally:
        host.down()


@pytest.fixture
def connect(tmp_path: Path) -> OpenSession:
    """connect(machine, **changes of its hosts.yaml entry) with the host's key pinned."""

    def make(machine: lab.LabHost, **changes: object) -> AbstractContextManager[HostSession]:
        (tmp_path / "known_hosts").write_text(machine.pinned_line())
        return open_session(machine.config(**changes), tmp_path)

    return make


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene.plugin_wheel(b"payload of the lab plugin" * 1000, tmp_path_factory.mktemp("plugin"))
