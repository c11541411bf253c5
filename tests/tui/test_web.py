"""The page in a browser: who gets in, over real HTTP against the real command, and what a real Chromium shows."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator

import aiohttp
import httpx
import numpy as np
import pytest
from matplotlib.image import imread

from orchestrator.store.records import RunState
from tests.tui.browser import browser_page, chromium
from tests.tui.fixtures import RUN_ID, Stage


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
        for path in ("/", "/?token=wrong", "/?token=", "/ws", "/static/js/textual.js", "/static/", "/download/x"):
            assert stranger.get(base + path).status_code == 403
        for host in ("evil.example", "localhost", f"localhost:{base.rpartition(':')[2]}"):
            assert stranger.get(address, headers={"Host": host}).status_code == 403
        assert stranger.get(address, headers={"Origin": "http://evil.example"}).status_code == 403
        first = guest.get(address)
        assert (first.status_code, first.headers["Location"]) == (302, "/")
        assert "HttpOnly" in first.headers["Set-Cookie"]
        page = guest.get(base + "/")
        assert page.status_code == 200
        assert "orchestrate" in page.text
        assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        assert not re.findall(r"https?://(?!127\.0\.0\.1:)", page.text)  # nothing is fetched from elsewhere
        assert stranger.get(address).status_code == 403
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert guest.get(base + "/", headers=headers).status_code == 403


async def test_a_websocket_needs_the_cookie_and_the_page_of_this_server(address: str) -> None:
    base, _, _ = address.partition("/?")
    with visitor() as guest:
        cookie = guest.get(address).headers["Set-Cookie"].partition(";")[0]
    async with aiohttp.ClientSession() as client:
        for headers in ({}, {"Cookie": "orchestrate_tui=wrong"}, {"Cookie": cookie, "Origin": "http://evil.example"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(f"{base}/ws", headers=headers)
            assert refused.value.status == 403
        async with client.ws_connect(f"{base}/ws", headers={"Cookie": cookie, "Origin": base}) as socket:
            assert await socket.receive(timeout=120)


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed: apt-get install chromium")
async def test_a_browser_follows_a_run_and_takes_keys_and_a_wrong_token_is_refused(address: str, demo: Stage) -> None:
    base, _, token = address.partition("/?token=")
    async with browser_page() as page:
        await page.open(f"{base}/?token={token[:-1]}")
        assert "wrong" in await page.evaluate("document.body.innerText")
        assert set(page.answers.values()) == {403}
        await page.open(address)
        await page.until(lambda text: "pair 7 of 12: budget 32" in text, "the run's log never came")
        assert await page.evaluate("location.href") == f"{base}/"  # the token is not in the address any more
        colours = np.unique(imread(io.BytesIO(await page.picture())).reshape(-1, 4), axis=0)
        assert len(colours) > 50, "the page is blank"
        demo.script.log("bench-budgets", "pair 8 of 12: as it happens")
        await page.until(lambda text: "pair 8 of 12: as it happens" in text, "a new line never came")
        await page.key("2")
        await page.until(lambda text: "Dead-man timer" in text, "the host view never came")
        await page.key("q")
        await page.until_true("document.body.classList.contains('-closed')", "the page never said that it is closed")
        assert set(page.answers.values()) <= {200, 302, 403, 404}
        assert page.blocked == []
    assert demo.store.runs.get(RUN_ID).state is RunState.RUNNING
