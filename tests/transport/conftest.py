"""A real embedded SSH host for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.transport.embedded import ensure_embedded, remove_embedded
from orchestrator.transport.settings import SshSettings
from orchestrator.transport.ssh import SshTransport


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, SshSettings]]:
    state_dir = tmp_path_factory.mktemp("state")
    try:
        yield state_dir, ensure_embedded(state_dir, "local")
    finally:
        remove_embedded(state_dir, "local")


@pytest.fixture
def transport(embedded: tuple[Path, SshSettings]) -> Iterator[SshTransport]:
    link = SshTransport(embedded[1])
    try:
        yield link
    finally:
        link.close()


@pytest.fixture(scope="session")
def shared(embedded: tuple[Path, SshSettings]) -> Iterator[SshTransport]:
    """One connection for property tests, which may not open one per example."""
    link = SshTransport(embedded[1])
    try:
        yield link
    finally:
        link.close()
