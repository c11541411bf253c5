"""A real embedded host, its process driver, and small Python environments with a package named sglang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.remote.process_driver import ProcessDriver
from orchestrator.transport.embedded import embedded_home, ensure_embedded, remove_embedded
from orchestrator.transport.ssh import SshTransport


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    try:
        yield folder
    finally:
        remove_embedded(folder, "local")


@pytest.fixture
def transport(state_dir: Path) -> Iterator[SshTransport]:
    link = SshTransport(ensure_embedded(state_dir, "local"))
    try:
        yield link
    finally:
        link.close()


@pytest.fixture
def driver(transport: SshTransport, state_dir: Path) -> ProcessDriver:
    return ProcessDriver(transport, str(embedded_home(state_dir, "local")))


@pytest.fixture
def make_venv(tmp_path: Path) -> Callable[..., Path]:
    """make_venv(name, package=True): a venv without pip that has (or lacks) a package `sglang`."""

    def make(name: str, *, package: bool = True) -> Path:
        prefix = tmp_path / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
        if package:
            site = next((prefix / "lib").glob("python3*")) / "site-packages"
            (site / "sglang").mkdir()
            (site / "sglang" / "__init__.py").write_text("")
            (site / "sglang" / "serve.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
        return prefix

    return make
