"""A stand-in for a host: real processes of this machine, reached through a Transport that runs them locally."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.transport.base import CommandResult
from tests.ports import free_ports

if os.environ.get("ORCHESTRATE_FULL") != "1":
    collect_ignore = ["test_wheels.py"]  # gigabytes of downloads: `make test-full`

SERVER = '''"""A stand-in for the server: listens, and answers server_info as the real one does."""
import http.server, json, os, sys

port = int(sys.argv[sys.argv.index("--port") + 1])
algorithm = sys.argv[sys.argv.index("--speculative-algorithm") + 1] if "--speculative-algorithm" in sys.argv else None

key = os.environ.get("KEY_OF_THE_STANDIN")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.send_error(401)
            return
        body = json.dumps({"speculative_algorithm": algorithm, "max_running_requests": 4, "api_key": "sk-live-1"}).encode()
        self.send_response(200 if self.path == "/server_info" else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


@dataclass
class LocalTransport:
    """Runs commands on this machine, as the transport would on a host; counts them."""

    host: str = "here"
    commands: int = 0
    path: str | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = 60.0,
        sudo: bool = False,
        check: bool = False,
        on_line: object = None,
        mask: Sequence[str] = (),
    ) -> CommandResult:
        self.commands += 1
        started = time.monotonic()
        environment = {**os.environ, **(env or {}), **({"PATH": self.path} if self.path else {})}
        try:
            done = subprocess.run(
                list(argv), input=stdin, capture_output=True, timeout=timeout_s, cwd=cwd, env=environment
            )
        except FileNotFoundError as error:
            return CommandResult(tuple(argv), 127, "", str(error), 0.0)
        texts = (done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        return CommandResult(tuple(argv), done.returncode, *texts, time.monotonic() - started)


@pytest.fixture
def transport() -> LocalTransport:
    return LocalTransport()


@pytest.fixture
def free_port() -> int:
    return free_ports()


def make_package(folder: Path, version: str) -> Path:
    """A package folder that inspect takes for sglang of this version; returns the package."""
    package = folder / "sglang"
    (package / "srt" / "speculative").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    (package / "launch_server.py").write_text(SERVER)
    (package / "srt" / "__init__.py").write_text("")
    (package / "srt" / "speculative" / "spec_info.py").write_text(
        "from enum import Enum, auto\n\n\nclass SpeculativeAlgorithm(Enum):\n    DFLASH = auto()\n    EAGLE = auto()\n    NONE = auto()\n"
    )
    (package / "srt" / "speculative" / "dflash_worker_v2.py").write_text("class DFlashWorkerV2:\n    pass\n")
    return package


def make_venv(folder: Path) -> tuple[Path, Path]:
    """A real virtual environment without pip; returns (python, site-packages)."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python", next(folder.glob("lib/python3.*/site-packages"))


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process and waits until its port answers; ends it after the test."""
    running: list[subprocess.Popen[bytes]] = []

    def launch(
        argv: Sequence[str | Path], port: int, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        process = subprocess.Popen(
            [str(a) for a in argv], env={**clean, **(env or {})}, cwd=cwd or tmp_path, stderr=subprocess.PIPE
        )
        running.append(process)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise AssertionError(
                    f"the stand-in server ended: {process.stderr.read().decode() if process.stderr else ''}"
                )
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return process
            time.sleep(0.05)
        raise AssertionError("the stand-in server did not listen in time")

    yield launch
    for process in running:
        process.terminate()
        process.wait(10)
        if process.stderr:
            process.stderr.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "host"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
