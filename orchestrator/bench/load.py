"""The load generator: closed loop, open loop (fixed or Poisson arrivals) and a ladder of levels, one process."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.bench.clock import Clock, RealClock
from orchestrator.bench.metrics import LoadSummary, Objective, measure, percentile, summarise
from orchestrator.openai.client import payload_for
from orchestrator.openai.endpoint import Endpoint, endpoint_of
from orchestrator.openai.records import Api, Completion
from orchestrator.openai.streaming import open_session, stream_completion

Send = Callable[[int], Awaitable[Completion]]  # sends request number i of the load


async def closed_loop(send: Send, requests: int, concurrency: int) -> list[Completion]:
    """Keep `concurrency` requests in flight until `requests` were sent; results in the order of sending."""
    numbers = iter(range(requests))
    results: dict[int, Completion] = {}

    async def worker() -> None:
        for i in numbers:
            results[i] = await send(i)

    workers = []
    for _ in range(min(concurrency, requests)):
        workers.append(asyncio.create_task(worker()))
        await asyncio.sleep(0)  # opening hundreds of streams in one turn of the loop would delay those already open
    await asyncio.gather(*workers)
    return [results[i] for i in sorted(results)]


def arrival_times(requests: int, rate_per_s: float, poisson: bool, seed: int = 0) -> Iterator[float]:
    """Seconds from the start at which each request is sent; the first at 0."""
    rng = random.Random(seed)
    at = 0.0
    for _ in range(requests):
        yield at
        at += rng.expovariate(rate_per_s) if poisson else 1 / rate_per_s


async def open_loop(
    send: Send, requests: int, rate_per_s: float, clock: Clock, poisson: bool = True, seed: int = 0
) -> list[Completion]:
    """Send at given times whatever the server does; results in the order of sending."""
    start = clock.now()

    async def at(i: int, due: float) -> Completion:
        await clock.sleep(start + due - clock.now())
        return await send(i)

    due_times = arrival_times(requests, rate_per_s, poisson, seed)
    return list(await asyncio.gather(*(at(i, due) for i, due in enumerate(due_times))))


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No garbage collection inside: one of a few 100,000 recorded deliveries stops every stream for tens of milliseconds.

    What a load leaves in cycles is little, and is collected afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class DelayProbe:
    """How late this process runs: the overshoot of short sleeps on its event loop, in seconds.

    own_s is the part of each delay in which this process computed; the rest it waited for a processor that others had.
    """

    PERIOD_S = 0.01

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self.own_s: list[float] = []

    @property
    def p99_s(self) -> float | None:
        return percentile(self.delays_s, 99)

    @property
    def own_p99_s(self) -> float | None:
        return percentile(self.own_s, 99)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DelayProbe]:
        task = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            task.cancel()

    async def _watch(self) -> None:
        clock = RealClock()
        while True:
            before, computed = clock.now(), time.process_time()
            await clock.sleep(self.PERIOD_S)
            late = max(0.0, clock.now() - before - self.PERIOD_S)
            self.delays_s.append(late)
            self.own_s.append(min(late, time.process_time() - computed))


@dataclass(frozen=True)
class Level:
    """One step of a load ladder: `concurrency` for a closed loop, or `rate_per_s` for an open one."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    poisson: bool = True

    @property
    def label(self) -> str:
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:g} requests/s {'Poisson' if self.poisson else 'fixed'}"
        return f"{self.concurrency} at once"


@dataclass(frozen=True)
class Target:
    """Where a load goes and how each request looks.

    thinking: switch the model's reasoning on or off through its chat template (chat only; None = as it comes).
    extra: further fields of every request's body.
    """

    server: Endpoint | str
    api: Api = Api.NATIVE
    model: str = "default"
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = True
    thinking: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadResult:
    """One level: its summary, every request, and how late the client itself was (p99, seconds; see DelayProbe)."""

    level: Level
    summary: LoadSummary
    completions: tuple[Completion, ...]
    client_delay_p99_s: float | None
    client_own_delay_p99_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Without the single requests."""
        return {
            "level": asdict(self.level) | {"label": self.level.label},
            "summary": self.summary.to_json(),
            "client_delay_p99_s": self.client_delay_p99_s,
            "client_own_delay_p99_s": self.client_own_delay_p99_s,
        }


async def load(
    target: Target,
    prompts: Sequence[tuple[str, Any]],
    requests: int,
    level: Level,
    objective: Objective | None = None,
    clock: Clock | None = None,
) -> LoadResult:
    """Send `requests` requests, cycling through `prompts` (id, prompt as `payload_for` takes it)."""
    clock = clock or RealClock()
    probe, server = DelayProbe(), endpoint_of(target.server)
    async with open_session(server) as session, probe.running():

        async def send(i: int) -> Completion:
            prompt_id, prompt = prompts[i % len(prompts)]
            body = payload_for(
                target.api,
                prompt,
                target.max_tokens,
                model=target.model,
                temperature=target.temperature,
                seed=None if target.seed is None else target.seed + i,
                ignore_eos=target.ignore_eos,
            )
            if target.thinking is not None:
                body["chat_template_kwargs"] = {"enable_thinking": target.thinking}
            body |= target.extra
            return await stream_completion(session, server.root, target.api, body, clock.now, prompt_id)

        start = clock.now()
        if level.rate_per_s is not None:
            done = await open_loop(send, requests, level.rate_per_s, clock, level.poisson)
        else:
            done = await closed_loop(send, requests, level.concurrency or 1)
        wall_s = clock.now() - start
    summary = summarise([measure(c) for c in done], wall_s, objective)
    return LoadResult(level, summary, tuple(done), probe.p99_s, probe.own_p99_s)


def run_load(
    target: Target,
    prompts: Sequence[tuple[str, Any]],
    requests: int,
    level: Level,
    objective: Objective | None = None,
) -> LoadResult:
    """`load` for blocking callers."""
    with collector_at_rest():
        return asyncio.run(load(target, prompts, requests, level, objective))


def run_ladder(
    target: Target,
    prompts: Sequence[tuple[str, Any]],
    requests_per_level: int,
    levels: Sequence[Level],
    objective: Objective | None = None,
    on_level: Callable[[LoadResult], None] = lambda _: None,
) -> list[LoadResult]:
    """Each level in turn, at least three requests per concurrent stream so that a level reaches steady state."""
    results = []
    for level in levels:
        requests = max(requests_per_level, 3 * (level.concurrency or 1))
        results.append(run_load(target, prompts, requests, level, objective))
        on_level(results[-1])
    return results
