"""One streamed request inside an asyncio program; the load generator runs hundreds of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.records import Api, Assembler, Completion
from orchestrator.openai.sse import SseSplitter


def open_session(server: Endpoint, timeout_s: float = 600.0) -> aiohttp.ClientSession:
    """A session without a connection limit: the load generator sets the concurrency, not the pool."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers=server.headers,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


async def stream_completion(
    session: aiohttp.ClientSession,
    base_url: str,
    api: Api,
    body: dict[str, Any],
    clock: Callable[[], float],
    prompt_id: str = "",
) -> Completion:
    """Send one request and read its event stream; never raises for what the server or network does."""
    done = Completion(prompt_id=prompt_id, sent_at_s=clock())
    assembler, splitter = Assembler(api, done), SseSplitter()
    try:
        async with session.post(base_url + api.value, json=body) as answer:
            done.status = answer.status
            if answer.status != 200:
                done.error = (await answer.text())[:300]
            else:
                async for chunk in answer.content.iter_any():
                    now = clock()
                    assembler.received(chunk)
                    for data in splitter.feed(chunk):
                        assembler.event(data, now)
                assembler.ended()
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as exc:
        done.error = f"{type(exc).__name__}: {exc}"
    done.ended_at_s = clock()
    return done
