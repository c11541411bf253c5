"""The rules that keep a fake win out of a verdict. Each has an id and looks at one row's facts only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.bench.rows import Finding, Row

SHORT_SHARE = 0.98
LOOP_SHARE = 0.5
CACHE_SHARE = 0.5
CLIENT_DELAY_SHARE = 0.03  # of the shortest request; a delay below it can't decide a pair
HARMLESS_THROTTLE = frozenset({"none", "not active", "gpu_idle", "applications_clocks_setting"})


@dataclass(frozen=True)
class Rule:
    """`check` returns the reason in one sentence, or None when the row passes."""

    id: str
    check: Callable[[Row], str | None]
    guards_against: str


def _failed(row: Row) -> str | None:
    for r in row.requests:
        if r.status != 200 or r.error:
            return f"request {r.prompt_id} failed (HTTP {r.status}: {r.error or 'no text'})"
        if not r.terminated:
            return f"the stream of {r.prompt_id} broke off without an end mark"
    return None if row.requests else "the row holds no request"


def _usage(row: Row) -> str | None:
    missing = [r.prompt_id for r in row.requests if not r.tokens]
    return f"no tokens reported for {missing[0]} (usage missing or zero)" if missing else None


def _overcounted(row: Row) -> str | None:
    for r in row.requests:
        if r.tokens and r.tokens > r.asked_tokens:
            return f"{r.prompt_id} counts {r.tokens} tokens, and {r.asked_tokens} were asked for"
        if r.tokens and r.received is not None and r.tokens > r.received:
            return f"{r.prompt_id} counts {r.tokens} tokens, and {r.received} were received"
    return None


def _short(row: Row) -> str | None:
    for r in row.requests:
        if r.tokens and r.tokens < SHORT_SHARE * r.asked_tokens:
            return f"{r.prompt_id} produced {r.tokens} of {r.asked_tokens} tokens"
    return None


def _loop(row: Row) -> str | None:
    for r in row.requests:
        if r.loop_share > LOOP_SHARE:
            return f"{r.loop_share:.0%} of {r.prompt_id}'s output repeats itself, so acceptance is meaningless"
    return None


def _no_spec(row: Row) -> str | None:
    if row.speculative and any(r.verify_steps <= 0 for r in row.requests if r.tokens):
        return "the server reports no speculative step, so something else served the request"
    return None


def _graphs(row: Row) -> str | None:
    if row.graphs is False:
        return "CUDA graphs are off in this arm, which hides the cost of a step"
    if row.other_graphs is False:
        return "CUDA graphs are off in the other arm, so the pair is not like for like"
    return None


def _unlike(row: Row) -> str | None:
    for key in row.engine.keys() & row.other_engine.keys():
        if row.engine[key] != row.other_engine[key]:
            return f"{key} is {row.engine[key]} in this arm and {row.other_engine[key]} in the other"
    return None


def _restarted(row: Row) -> str | None:
    if row.identity_before != row.identity_after:
        return "the server was restarted during the measurement"
    return None


def _throttled(row: Row) -> str | None:
    for sample in (row.host_before, row.host_after):
        bad = [r for r in (sample.throttle_reasons if sample else ()) if r.lower() not in HARMLESS_THROTTLE]
        if bad:
            return f"the clocks were throttled ({', '.join(bad)})"
    return None


def _foreign_gpu(row: Row) -> str | None:
    for sample in (row.host_before, row.host_after):
        if sample and sample.foreign_processes:
            return f"other processes used the accelerator ({', '.join(sample.foreign_processes)})"
    return None


def _foreign_requests(row: Row) -> str | None:
    if row.foreign_requests:
        return f"the server finished {row.foreign_requests} requests of others meanwhile"
    return None


def _live_load(row: Row) -> str | None:
    if row.live_load is not None and row.live_load > row.max_live_load:
        return f"{row.live_load:g} requests were already in the server; at most {row.max_live_load:g} are allowed"
    return None


def _warm_up_overlap(row: Row) -> str | None:
    both = set(row.warm_up_hashes) & set(row.prompt_hashes)
    return f"{len(both)} measured prompts were used for warming up" if both else None


def _cache_hit(row: Row) -> str | None:
    for r in row.requests:
        if r.cached_tokens and r.prompt_tokens and r.cached_tokens > CACHE_SHARE * r.prompt_tokens:
            return f"{r.cached_tokens} of {r.prompt_tokens} prompt tokens of {r.prompt_id} came from the cache"
    return None


def _saturated(row: Row) -> str | None:
    delay = row.client_delay_p99_s
    shortest = min((r.e2e_s for r in row.requests), default=0.0)
    if delay is not None and delay > max(row.client_delay_limit_s, CLIENT_DELAY_SHARE * shortest):
        return f"the client itself was late by {delay * 1e3:.1f} ms (p99) in requests of {shortest * 1e3:.0f} ms"
    return None


def _lossless(row: Row) -> str | None:
    return "its output differs from the linear arm's, so it is not lossless" if row.lossless is False else None


RULES: tuple[Rule, ...] = (
    Rule("request-failed", _failed, "an engine that died mid-run and looks fast"),
    Rule("usage-missing", _usage, "counting chunks, or nothing, as tokens"),
    Rule("usage-wrong", _overcounted, "tokens that nobody received"),
    Rule("output-short", _short, "outputs of a few tokens that never reach steady state"),
    Rule("repetition-loop", _loop, "loops in which every draft is right"),
    Rule("no-speculation", _no_spec, "a fall-back to plain decoding"),
    Rule("graphs-off", _graphs, "eager mode, in which a wide step costs as much as a narrow one"),
    Rule("unlike-arms", _unlike, "another version, model or backend in one arm"),
    Rule("server-restarted", _restarted, "cold caches and other settings half-way"),
    Rule("clocks-throttled", _throttled, "heat or power limits in one arm"),
    Rule("foreign-gpu", _foreign_gpu, "a neighbour on the accelerator"),
    Rule("foreign-requests", _foreign_requests, "users on one of the arms"),
    Rule("live-load", _live_load, "measuring on a service that is busy"),
    Rule("warm-up-overlap", _warm_up_overlap, "warm caches for the measured prompts"),
    Rule("cache-hit", _cache_hit, "a prefill that was skipped"),
    Rule("client-saturated", _saturated, "measuring the client"),
    Rule("not-lossless", _lossless, "speed bought with other text"),
)

# A rule about a whole sweep, not about a row: see orchestrator.bench.summary.
SET_TOO_SMALL = "prompt-set-too-small"


def judge(row: Row) -> Row:
    """The row with every finding that the rules make; findings it had before are replaced."""
    found = [Finding(rule.id, reason) for rule in RULES if (reason := rule.check(row)) is not None]
    return replace(row, findings=tuple(found))
