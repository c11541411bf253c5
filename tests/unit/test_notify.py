"""The call at the end of a run: a real HTTP server and real commands receive the document; no failure stays unsaid."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.notify import notify
from orchestrator.hosts.secrets import Masker

DOCUMENT = {"ok": True, "exit_code": 9, "verdict": {"decision": "keep linear"}, "reason": "the key is canary-5150"}


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(404 if self.path.startswith("/gone") else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as running:
        running.got = []  # type: ignore[attr-defined]
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def config(**how: object) -> HostConfig:
    return HostConfig.model_validate(
        {"name": "h", "transport": "embedded", "engine": "sglang-cpu", "model": "tiny-dense", "notify": how}
    )


def test_a_webhook_gets_the_document_with_secrets_masked(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/done")
    assert notify(config(webhook="env:HOOK"), DOCUMENT, Masker(["canary-5150"]).mask) == []
    ((path, kind, got),) = server.got
    assert (path, kind) == ("/done", "application/json")
    assert got == {**DOCUMENT, "reason": "the key is [secret]"}


def test_a_command_gets_it_on_its_standard_input(tmp_path: Path) -> None:
    copy = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    assert notify(config(command=[sys.executable, "-c", copy]), DOCUMENT, str) == []
    assert json.loads((tmp_path / "got").read_text()) == DOCUMENT


@pytest.mark.parametrize("gone", [True, False], ids=["not found", "nobody listens"])
def test_a_webhook_that_fails_is_said_without_its_address(
    server: Any, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.server_port if gone else 1
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{port}/gone?token=canary-5150")
    (problem,) = notify(config(webhook="env:HOOK"), DOCUMENT, str)
    assert problem.startswith("hosts.h.notify: the webhook")
    assert "canary" not in problem


def test_commands_that_fail_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = notify(config(command=[sys.executable, "-c", "import sys; sys.exit('no channel')"]), DOCUMENT, str)
    assert "exit code 1 (no channel)" in problem
    (problem,) = notify(config(command=["/nowhere/tool"]), DOCUMENT, str)
    assert "could not be started" in problem
    monkeypatch.delenv("HOOK", raising=False)
    (problem,) = notify(config(webhook="env:HOOK"), DOCUMENT, str)
    assert "HOOK, which is not set" in problem


def test_nothing_is_called_when_nothing_is_named() -> None:
    assert notify(config(), DOCUMENT, str) == []
