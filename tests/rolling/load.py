"""Load on a router until it is told to stop: `python -m tests.rolling.load URL STREAMS FILE`, a line on stdin ends it.

Every request streams 32 tokens of greedy text. FILE gets {"sent", "tokens", "failed": [...], "longest_s", "workers"}.
A request counts as good only when every token came, the stream said that it ended, and the usage agrees.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

TOKENS = 32
PROMPTS = ("def main():\n", "The tree grows", "import os\n", "A list of words:", "Once upon a time", "for i in range(")


@dataclass
class Load:
    url: str
    sent: int = 0
    tokens: int = 0
    longest_s: float = 0.0
    failed: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self.stop.is_set():
            await self.request(session, PROMPTS[(self.sent + number) % len(PROMPTS)])

    async def request(self, session: aiohttp.ClientSession, prompt: str) -> None:
        self.sent += 1
        started = time.monotonic()
        try:
            problem = await self._one(session, prompt)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
        self.longest_s = max(self.longest_s, time.monotonic() - started)
        if problem:
            self.failed.append(f"{time.strftime('%H:%M:%S')} {problem}")

    async def _one(self, session: aiohttp.ClientSession, prompt: str) -> str:
        """Empty for a good answer, else what was wrong with it."""
        body: dict[str, Any] = {
            "model": "default", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        used, ended = 0, False
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                return f"status {answer.status}: {(await answer.text())[:200]}"
            async for raw in answer.content:
                line = raw.decode().strip()
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        return f"error in the stream: {chunk['error']}"
                    used = (chunk.get("usage") or {}).get("completion_tokens", used)
        self.tokens += used
        return "" if ended and used == TOKENS else f"{used} of {TOKENS} tokens, ended: {ended}"


async def main(url: str, streams: int, report: Path) -> None:
    load = Load(url)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        running = [asyncio.create_task(load.stream(session, number)) for number in range(streams)]
        done = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        while not done.done():
            report.with_suffix(".count").write_text(str(load.sent))
            await asyncio.wait([done], timeout=0.5)
        load.stop.set()
        await asyncio.gather(*running)
    document = {"sent": load.sent, "tokens": load.tokens, "failed": load.failed, "longest_s": load.longest_s}
    report.write_text(json.dumps(document))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
