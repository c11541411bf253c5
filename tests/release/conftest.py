"""A real embedded host that serves from a small venv whose package `sglang` answers HTTP, and a plugin to install there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release import build
from orchestrator.release.manifest import Manifest
from orchestrator.release.wheels import build_wheel
from orchestrator.remote.services import ServiceUnit
from orchestrator.transport.embedded import remove_embedded
from tests.ports import free_ports
from tests.release.driving import found, plan_for, quiet

SERVER = """
import http.server, json, sys
from importlib import metadata

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try: plugin = metadata.version("plugin-for-tests")
        except metadata.PackageNotFoundError: plugin = None
        body = json.dumps({"argv": sys.argv[1:], "prefix": sys.prefix, "plugin": plugin}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture(scope="session")
def plugin_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin that lists what it overrides, built like the real one."""
    source = tmp_path_factory.mktemp("source") / "test_plugin"
    (source / "test_plugin").mkdir(parents=True)
    (source / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["setuptools>=65"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "plugin-for-tests"
        version = "1.0"
        scripts = {test-plugin = "test_plugin.__main__:main"}
        [tool.setuptools]
        packages = ["test_plugin"]
        """)
    )
    (source / "test_plugin" / "__init__.py").write_text("")
    (source / "test_plugin" / "__main__.py").write_text(
        'import json\ndef main():\n    print(json.dumps({"hooks": [{"target": "sglang.serve.Handler"}]}))\nmain()\n'
    )
    return build_wheel(source, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def serving_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with pip and a package sglang, with scripts, byte code and a .pth file that names the venv's own path."""
    prefix = tmp_path_factory.mktemp("opt") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
    site = next((prefix / "lib").glob("python3*")) / "site-packages"
    (site / "sglang").mkdir()
    (site / "sglang" / "__init__.py").write_text("")
    (site / "sglang" / "serve.py").write_text(SERVER)
    (site / "own.pth").write_text(f"{site}/extra\n")
    (site / "extra").mkdir()
    (site / "extra" / "only_there.py").write_text("HERE = __file__\n")
    (prefix / "bin" / "own-link").symlink_to(prefix / "bin" / "python")
    return prefix


@pytest.fixture
def session(tmp_path: Path, serving_venv: Path, free_port: int) -> Iterator[HostSession]:
    """An open session; the service `sglang` runs from the venv."""
    config = HostConfig.model_validate(
        {
            "name": "local",
            "transport": "embedded",
            "engine": "sglang-cpu",
            "model": "tiny-hybrid",
            "service": {"port": free_port, "stop_timeout_s": 5},
        }
    )
    try:
        with open_session(config, tmp_path) as opened:
            argv = (str(serving_venv / "bin" / "python"), "-m", "sglang.serve", "--port", str(free_port))
            opened.services.install(ServiceUnit("sglang", (*argv, "--algorithm", "LINEAR"), stop_timeout_s=5))
            opened.services.start("sglang")
            yield opened
    finally:
        remove_embedded(tmp_path, "local")


@pytest.fixture
def built(session: HostSession, plugin_wheel: Path) -> tuple[Manifest, Manifest]:
    source = found(session)
    return source, build.build_release(session.releases, plan_for(session, source, plugin_wheel), quiet)


@pytest.fixture
def free_port() -> int:
    """The service's; the ones after it are for what stands beside it."""
    return free_ports(4)
