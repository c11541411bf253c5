"""A real headless Chromium for tests, driven over its DevTools websocket."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 120.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
READS_FRAMES = """
window.seen = "";
const Real = window.WebSocket;
window.WebSocket = class extends Real {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", async (event) => {
      const data = event.data;
      if (typeof data === "string") return;
      const text = await new Response(data).text();
      window.seen += text;
    });
  }
};
"""


def chromium() -> str | None:
    """The browser of this machine; None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `answers` and `blocked` say how its requests went."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session = ""
        self._number = 0
        self.answers: dict[str, int] = {}  # address without query -> HTTP status
        self.blocked: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        while True:
            answer = await self._socket.receive_json(timeout=PATIENCE_S)
            self._note(answer)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.responseReceived":
            self.answers[params["response"]["url"].partition("?")[0]] = params["response"]["status"]
        elif event.get("method") == "Network.loadingFailed" and params.get("blockedReason"):
            self.blocked.append(params["blockedReason"])

    async def open(self, address: str) -> None:
        await self.call("Page.navigate", url=address)
        await self.until_true("document.readyState === 'complete'", f"{address} was never loaded")

    async def evaluate(self, script: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    async def painted(self) -> str:
        """What the program sent to the page's terminal so far, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07", "", await self.evaluate("window.seen") or "")

    async def until(self, condition: Callable[[str], object], what: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(found := await self.painted()):
            assert time.monotonic() < deadline, f"{what}; the page shows {found[-1500:]!r}"
            await asyncio.sleep(0.05)
        return found

    async def until_true(self, script: str, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await self.evaluate(script):
            assert time.monotonic() < deadline, what
            await asyncio.sleep(0.05)

    async def key(self, key: str) -> None:
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def _attach(self) -> None:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            await self.call(f"{domain}.enable")
        size = {"width": 1200, "height": 760, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=READS_FRAMES)


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """A tab of a browser with a profile of its own; both are gone afterwards."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            address = await _address(Path(profile))
            async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=1 << 28) as socket:
                page = Page(socket)
                await page._attach()
                yield page
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _address(profile: Path) -> str:
    """Chromium writes port and path of its debugging socket into its profile."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lines = (
            (profile / "DevToolsActivePort").read_text().split() if (profile / "DevToolsActivePort").exists() else []
        )
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert time.monotonic() < deadline, "the browser did not open its debugging socket"
        await asyncio.sleep(0.05)
