"""Latency and throughput of requests, from the times at which the client saw their tokens.

ttft   sent -> first token of any kind (reasoning included); ttfc: first token that is content.
itl    (last - first) / (tokens - 1): mean time between tokens, tokens as the server counted them, never chunks.
tpot   (last - sent) / tokens: time per output token with the first one included.
e2e    sent -> end of the stream.
gap    time between two deliveries, whatever number of tokens they carry (a speculative step delivers several).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from orchestrator.openai.records import Completion


@dataclass(frozen=True)
class RequestMetrics:
    """All times in seconds; None where the request did not get that far."""

    prompt_id: str
    ok: bool
    tokens: int
    prompt_tokens: int
    ttft_s: float | None
    ttfc_s: float | None
    itl_s: float | None
    tpot_s: float | None
    e2e_s: float
    gaps_s: tuple[float, ...]
    token_gaps_s: tuple[float, ...]

    @property
    def tok_s(self) -> float:
        """Output tokens per second of this request alone."""
        return self.tokens / self.e2e_s if self.e2e_s > 0 else 0.0


def measure(done: Completion) -> RequestMetrics:
    """Figures of one request."""
    tokens = done.completion_tokens or 0
    times = [d.at_s for d in done.deliveries]
    content = [d.at_s for d in done.deliveries if not d.reasoning]
    first, last = (times[0], times[-1]) if times else (None, None)
    spread = last - first if first is not None and last is not None else None
    return RequestMetrics(
        prompt_id=done.prompt_id,
        ok=done.ok,
        tokens=tokens,
        prompt_tokens=done.prompt_tokens or 0,
        ttft_s=None if first is None else first - done.sent_at_s,
        ttfc_s=content[0] - done.sent_at_s if content else None,
        itl_s=spread / (tokens - 1) if spread is not None and tokens > 1 else None,
        tpot_s=(last - done.sent_at_s) / tokens if last is not None and tokens else None,
        e2e_s=done.ended_at_s - done.sent_at_s,
        gaps_s=tuple(b - a for a, b in pairwise(times)),
        token_gaps_s=_token_gaps(done),
    )


def _token_gaps(done: Completion) -> tuple[float, ...]:
    """Each delivery's gap shared among the tokens it brought; () where the stream does not count tokens."""
    gaps: list[float] = []
    for before, after in pairwise(done.deliveries):
        if before.tokens is None or after.tokens is None:
            return ()
        new = after.tokens - before.tokens
        gaps += [(after.at_s - before.at_s) / new] * new if new > 0 else []
    return tuple(gaps)


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-th percentile (0..100) with linear interpolation; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Spread:
    """Distribution of one quantity, in the quantity's own unit."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None

    @staticmethod
    def of(values: Iterable[float | None]) -> Spread:
        known = [v for v in values if v is not None]
        mean = sum(known) / len(known) if known else None
        return Spread(len(known), mean, percentile(known, 50), percentile(known, 90), percentile(known, 99))


@dataclass(frozen=True)
class Objective:
    """Service level that a request must meet to count as good; None = no limit. Seconds."""

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def met(self, m: RequestMetrics) -> bool:
        """Failed requests never meet it."""
        limits = ((self.ttft_s, m.ttft_s), (self.itl_s, m.itl_s), (self.e2e_s, m.e2e_s))
        return m.ok and all(limit is None or (value is not None and value <= limit) for limit, value in limits)


@dataclass(frozen=True)
class LoadSummary:
    """One load level. Times in seconds, rates per second of wall time."""

    requests: int
    failed: int
    wall_s: float
    tokens: int
    tok_s: float
    req_s: float
    ttft: Spread
    ttfc: Spread
    itl: Spread
    token_gap: Spread
    chunk_gap: Spread
    tpot: Spread
    e2e: Spread
    tok_s_per_request: Spread
    goodput_share: float | None
    goodput_req_s: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(requests: Sequence[RequestMetrics], wall_s: float, objective: Objective | None = None) -> LoadSummary:
    """Aggregate one load level; failed requests count in `failed` only, never in a latency."""
    good = [m for m in requests if m.ok]
    tokens = sum(m.tokens for m in good)
    met = sum(objective.met(m) for m in requests) if objective else None
    return LoadSummary(
        requests=len(requests),
        failed=len(requests) - len(good),
        wall_s=wall_s,
        tokens=tokens,
        tok_s=tokens / wall_s if wall_s > 0 else 0.0,
        req_s=len(good) / wall_s if wall_s > 0 else 0.0,
        ttft=Spread.of(m.ttft_s for m in good),
        ttfc=Spread.of(m.ttfc_s for m in good),
        itl=Spread.of(m.itl_s for m in good),
        token_gap=Spread.of(g for m in good for g in m.token_gaps_s),
        chunk_gap=Spread.of(g for m in good for g in m.gaps_s),
        tpot=Spread.of(m.tpot_s for m in good),
        e2e=Spread.of(m.e2e_s for m in good),
        tok_s_per_request=Spread.of(m.tok_s for m in good),
        goodput_share=None if met is None or not requests else met / len(requests),
        goodput_req_s=None if met is None or wall_s <= 0 else met / wall_s,
    )
