"""Smoke checks of what a server withstands: odd sizes, many at once, aborts, bad requests; and sameness."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from orchestrator.openai.checks import CheckFailed, NamedCheck, NotOffered, Probe
from orchestrator.openai.client import Client, payload_for
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.records import Api
from orchestrator.openai.smoke_api import STORY

DRAIN_S = 20.0


def _one_token_prompt(probe: Probe) -> str:
    done = probe.expect(Api.COMPLETIONS, "a", 4)
    return f"{done.prompt_tokens} prompt tokens, {done.completion_tokens} out"


def _context_length(probe: Probe) -> int | None:
    listed = (probe.client.get_json("/v1/models") or {}).get("data") or [{}]
    info = probe.client.server_info()
    for value in (listed[0].get("max_model_len"), info.get("context_length"), info.get("max_req_input_len")):
        if isinstance(value, int) and value > 0:
            return value
    return None


def _long_prompt(probe: Probe) -> str:
    limit = _context_length(probe)
    words = min(2000, (limit or 4096) // 4)
    done = probe.expect(Api.COMPLETIONS, "the boat sails " * (words // 3), 8)
    return f"{done.prompt_tokens} prompt tokens"


def _concurrent(probe: Probe) -> str:
    n = 4 if probe.quick else 16
    prompts = [f"{i}. {STORY}" for i in range(n)]
    with ThreadPoolExecutor(n) as pool:
        results = list(pool.map(lambda p: probe.ask(Api.COMPLETIONS, p, 16), prompts))
    bad = [r for r in results if not r.ok]
    if bad:
        raise CheckFailed(f"{len(bad)} of {n} failed: HTTP {bad[0].status} {bad[0].error}")
    return f"{n} at once, all complete"


def _aborted(probe: Probe) -> str:
    body = payload_for(Api.COMPLETIONS, STORY, 512, model=probe.model)
    server = probe.client.endpoint
    with httpx.Client(base_url=server.root, headers=server.headers, timeout=60, trust_env=False) as http:
        for _ in range(1 if probe.quick else 3):
            try:
                with http.stream("POST", Api.COMPLETIONS.value, json=body) as answer:
                    next(answer.iter_raw(), b"")
            except httpx.HTTPError as exc:
                raise CheckFailed(f"a stream broke before we left it ({type(exc).__name__}: {exc})") from exc
    drained = _drained(probe)
    probe.still_serves()
    return "left mid-stream; the server went on" + (" and holds no request of ours" if drained else "")


def _drained(probe: Probe) -> bool:
    """Wait until no request runs; False when the server does not show that number."""
    deadline = time.monotonic() + DRAIN_S
    while True:
        metrics = probe.client.metrics() or {}
        running = metrics.get("sglang:num_running_reqs")
        if running is None:
            return False
        if running == 0:
            return True
        if time.monotonic() > deadline:
            raise CheckFailed(f"{running:g} requests still run {DRAIN_S:.0f} s after the client left")
        time.sleep(0.1)


def _refused(probe: Probe, what: str, status: int) -> str:
    if not 400 <= status < 500:
        raise CheckFailed(f"{what} answered {status}, a 4xx is due")
    probe.still_serves()
    return f"{what}: HTTP {status}, and the server goes on"


def _malformed(probe: Probe) -> str:
    answer = probe.client.request(
        "POST", Api.COMPLETIONS.value, content=b'{"prompt": ', headers={"Content-Type": "application/json"}
    )
    broken = _refused(probe, "broken JSON", answer.status_code)
    body = {"model": probe.model, "prompt": STORY, "max_tokens": "many"}
    status = probe.client.request("POST", Api.COMPLETIONS.value, json=body).status_code
    return f"{broken}; {_refused(probe, 'a wrong type', status)}"


def _oversized(probe: Probe) -> str:
    limit = _context_length(probe)
    if limit is None or limit > 300_000:
        raise NotOffered("the context length is unknown or too long to exceed here")
    done = probe.ask(Api.COMPLETIONS, "the boat sails " * limit, 8)
    return _refused(probe, f"a prompt beyond {limit} tokens", done.status)


def _wrong_key(probe: Probe) -> str:
    if not probe.api_key:
        raise NotOffered("no API key is set for this service")
    with Client(Endpoint(probe.client.base_url, "wrong-key")) as stranger:
        status = stranger.request("GET", "/v1/models").status_code
    if status not in (401, 403):
        raise CheckFailed(f"a wrong key got HTTP {status}")
    return f"a wrong key gets HTTP {status}"


def _metrics(probe: Probe) -> str:
    metrics = probe.client.metrics()
    if metrics is None:
        raise NotOffered("GET /metrics is off")
    if not metrics:
        raise CheckFailed("GET /metrics is empty")
    return f"{len(metrics)} series"


def _deterministic(probe: Probe) -> str:
    texts = {probe.expect(Api.COMPLETIONS, STORY, 32).text for _ in range(2 if probe.quick else 4)}
    if len(texts) != 1:
        raise CheckFailed(f"greedy decoding gave {len(texts)} different texts for one prompt")
    return "the same text every time"


def _lossless(probe: Probe) -> str:
    if probe.reference is None:
        raise NotOffered("no reference service was given to compare with")
    prompts = probe.lossless_prompts[:2] if probe.quick else probe.lossless_prompts
    for prompt in prompts:
        mine = probe.client.generate(prompt, 48).output_ids
        theirs = list(probe.reference(prompt, 48))
        if not mine or not theirs:
            raise CheckFailed(f"no token ids for {prompt!r} from {'the service' if not mine else 'the reference'}")
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), len(mine))
            raise CheckFailed(f"{prompt!r}: token {at} differs from the reference")
    return f"{len(prompts)} prompts of 48 tokens, the same ids as the reference"


CHECKS = [
    NamedCheck("one-token-prompt", "the shortest prompt works", _one_token_prompt),
    NamedCheck("long-prompt", "a prompt of many pages works", _long_prompt),
    NamedCheck("concurrent", "requests at once don't disturb each other", _concurrent),
    NamedCheck("aborted", "a client that leaves does not leak a slot or kill the server", _aborted),
    NamedCheck("malformed", "bad requests get a 4xx and harm nobody", _malformed),
    NamedCheck("oversized", "a prompt beyond the context is refused and harms nobody", _oversized),
    NamedCheck("wrong-key", "a wrong API key is refused", _wrong_key),
    NamedCheck("metrics", "the service can be watched", _metrics),
    NamedCheck("deterministic", "greedy decoding is repeatable", _deterministic),
    NamedCheck("lossless", "greedy ids equal those of the reference service", _lossless),
]
