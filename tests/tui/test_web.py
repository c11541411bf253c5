"""The page in a browser: who gets in, over real HTTP against the real command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.tui.fixtures import Stage


@pytest.fixture
def address(demo: Stage) -> Iterator[str]:
    """The printed address with its token; the server ends with the test."""
    command = [sys.executable, "-m", "orchestrator", "tui", "--web", "--hosts", str(demo.hosts_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())
        assert found
        yield found.group()
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


def visitor() -> httpx.Client:
    """Waits for a server that is only starting, and for one on a busy machine."""
    return httpx.Client(transport=httpx.HTTPTransport(retries=10), timeout=120)


def test_the_token_works_once_and_nothing_else_gets_in(address: str) -> None:
    base, _, _ = address.partition("/?")
    with visitor() as stranger, visitor() as guest:
        for path in ("/", "/?token=wrong", "/ws", "/static/js/textual.js"):
            assert stranger.get(base + path).status_code == 403
        assert stranger.get(address, headers={"Host": "evil.example"}).status_code == 403
        assert stranger.get(address, headers={"Origin": "http://evil.example"}).status_code == 403
        first = guest.get(address)
        assert (first.status_code, first.headers["Location"]) == (302, "/")
        assert "HttpOnly" in first.headers["Set-Cookie"]
        page = guest.get(base + "/")
        assert page.status_code == 200
        assert "orchestrate" in page.text
        assert stranger.get(address).status_code == 403
        assert guest.get(base + "/", headers={"Origin": "http://evil.example"}).status_code == 403
