"""Smoke checks of the API's contents: what an ordinary request gets back."""

from __future__ import annotations

import json

from orchestrator.openai.checks import CheckFailed, NamedCheck, NotOffered, Probe
from orchestrator.openai.records import Api, Completion

STORY = "Once upon a time there was a small boat, and"
EMOJI = "Repeat: 🚀 naïve café 日本語 🧪🧪 Ω — "


def _liveness(probe: Probe) -> str:
    if not probe.client.alive():
        raise CheckFailed("GET /health did not answer 200")
    return "GET /health answers 200"


def _readiness(probe: Probe) -> str:
    answer = probe.client.request("GET", "/health_generate")
    if answer.status_code in (404, 405):
        raise NotOffered("no /health_generate, which would prove more than liveness")
    if answer.status_code != 200:
        raise CheckFailed(f"GET /health_generate answered {answer.status_code}")
    return "the scheduler produced a token for a probe"


def _models(probe: Probe) -> str:
    ids = probe.client.models()
    if not ids:
        raise CheckFailed("GET /v1/models lists no model")
    if probe.model not in ids and probe.model != "default":
        raise CheckFailed(f"{probe.model} is not among {ids}")
    return ", ".join(ids)


def _completion(probe: Probe) -> str:
    done = probe.expect(Api.COMPLETIONS, STORY, 16)
    if not done.text:
        raise CheckFailed("200 with an empty text")
    return f"{done.completion_tokens} tokens: {done.text[:60]!r}"


def _chat(probe: Probe) -> str:
    done = probe.ask(Api.CHAT, "Say hello.", 16)
    if done.status in (400, 404) and ("template" in done.error.lower() or done.status == 404):
        raise NotOffered(f"the model has no chat template (HTTP {done.status})")
    if not done.ok or not (done.text or done.reasoning):
        raise CheckFailed(f"HTTP {done.status}, {done.completion_tokens} tokens, {done.error or 'empty text'}")
    probe.notes["chat"] = True
    return f"{done.completion_tokens} tokens: {(done.text or done.reasoning)[:60]!r}"


def _same_streamed(probe: Probe, prompt: str, max_tokens: int) -> tuple[Completion, Completion]:
    whole = probe.expect(Api.COMPLETIONS, prompt, max_tokens)
    parts = probe.expect(Api.COMPLETIONS, prompt, max_tokens, stream=True)
    if parts.text != whole.text:
        raise CheckFailed(f"streamed {parts.text[:60]!r}, whole {whole.text[:60]!r}")
    return whole, parts


def _stream(probe: Probe) -> str:
    _, parts = _same_streamed(probe, STORY, 24)
    if len(parts.deliveries) < 2:
        raise CheckFailed(f"24 tokens came in {len(parts.deliveries)} piece, so nothing is streamed")
    return f"{len(parts.deliveries)} pieces, the same text as unstreamed, ended with [DONE]"


def _usage(probe: Probe) -> str:
    whole, parts = _same_streamed(probe, STORY, 16)
    counts = [(d.prompt_tokens, d.completion_tokens) for d in (whole, parts)]
    if counts[0] != counts[1] or not counts[0][0]:
        raise CheckFailed(f"usage unstreamed {counts[0]}, streamed {counts[1]} (prompt, completion)")
    return f"{counts[0][0]} prompt and {counts[0][1]} completion tokens both ways"


def _max_tokens(probe: Probe) -> str:
    for wanted in (1, 7):
        done = probe.expect(Api.COMPLETIONS, STORY, wanted)
        if done.completion_tokens != wanted or done.finish_reason != "length":
            raise CheckFailed(f"asked for {wanted}, got {done.completion_tokens}, finish {done.finish_reason}")
    return "1 and 7 asked, 1 and 7 delivered, finish_reason length"


def _stop(probe: Probe) -> str:
    whole = probe.expect(Api.COMPLETIONS, STORY, 24).text
    middle = whole[len(whole) // 2 :].strip()
    stop = middle[:3]
    if not stop:
        raise NotOffered("the model's text is too short to cut a stop string from it")
    done = probe.expect(Api.COMPLETIONS, STORY, 24, stop=[stop])
    if stop in done.text or not whole.startswith(done.text) or done.finish_reason != "stop":
        raise CheckFailed(f"stop {stop!r} gave {done.text[:60]!r}, finish {done.finish_reason}")
    return f"stopped before {stop!r}, also where it falls inside an accepted run of drafts"


def _several(probe: Probe) -> str:
    body = {"model": probe.model, "prompt": STORY, "max_tokens": 4, "temperature": 0, "n": 2}
    answer = probe.client.request("POST", Api.COMPLETIONS.value, json=body)
    if answer.status_code == 400:
        raise NotOffered(f"n=2 is refused: {answer.text[:100]}")
    choices = answer.json().get("choices") or []
    if answer.status_code != 200 or sorted(c.get("index") for c in choices) != [0, 1]:
        raise CheckFailed(f"n=2 gave HTTP {answer.status_code} and {len(choices)} choices")
    return "two choices with their own index"


def _temperature(probe: Probe) -> str:
    greedy = probe.expect(Api.COMPLETIONS, STORY, 24).text
    hot = {probe.expect(Api.COMPLETIONS, STORY, 24, temperature=1.5).text for _ in range(3)}
    if hot == {greedy}:
        raise NotOffered("temperature 1.5 gave the greedy text three times")
    return f"{len(hot)} different texts of 3 at temperature 1.5"


def _seed(probe: Probe) -> str:
    texts = [probe.expect(Api.COMPLETIONS, STORY, 16, temperature=1.0, seed=7).text for _ in range(2)]
    if texts[0] != texts[1]:
        raise NotOffered("the same seed gave two texts; the server does not honour seeds")
    other = probe.expect(Api.COMPLETIONS, STORY, 16, temperature=1.0, seed=8).text
    return "the same text twice" + ("" if other != texts[0] else " (and for another seed: sampling may be off)")


def _json_schema(probe: Probe) -> str:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    if not probe.notes.get("chat"):
        raise NotOffered("no chat endpoint to ask with")
    done = probe.ask(Api.CHAT, "Give n = 3 as JSON.", 48, response_format=wanted, ignore_eos=False)
    if done.status in (400, 404, 422, 501):
        raise NotOffered(f"response_format json_schema is refused (HTTP {done.status}: {done.error[:80]})")
    if not done.ok:
        raise CheckFailed(f"HTTP {done.status} {done.error}")
    if done.finish_reason == "length":
        raise NotOffered("the model did not finish its JSON within 48 tokens")
    if not isinstance(json.loads(done.text).get("n"), int):
        raise CheckFailed(f"not what the schema says: {done.text[:80]!r}")
    return done.text[:60]


def _tools(probe: Probe) -> str:
    tool = {"name": "clock", "description": "Tells the time", "parameters": {"type": "object", "properties": {}}}
    if not probe.notes.get("chat"):
        raise NotOffered("no chat endpoint to ask with")
    body = {
        "model": probe.model,
        "messages": [{"role": "user", "content": "What time is it?"}],
        "tools": [{"type": "function", "function": tool}],
        "max_tokens": 48,
        "temperature": 0,
    }
    answer = probe.client.request("POST", Api.CHAT.value, json=body)
    if answer.status_code in (400, 404, 422, 501):
        raise NotOffered(f"tools are refused (HTTP {answer.status_code})")
    if answer.status_code != 200:
        raise CheckFailed(f"HTTP {answer.status_code}: {answer.text[:100]}")
    calls = answer.json()["choices"][0]["message"].get("tool_calls")
    if not calls:
        raise NotOffered("tools are accepted, but the model called none (or no tool parser is set)")
    return f"called {calls[0]['function']['name']}"


def _unicode(probe: Probe) -> str:
    whole, parts = _same_streamed(probe, EMOJI, 32)
    if "�" in parts.text.rstrip("�") and "�" not in whole.text:
        raise CheckFailed(f"a character was torn at a token border: {parts.text[:60]!r}")
    return f"{len(whole.text)} characters, streamed as unstreamed"


CHECKS = [
    NamedCheck("liveness", "the HTTP front answers", _liveness),
    NamedCheck("readiness", "the model itself produces tokens, not only the front", _readiness),
    NamedCheck("models", "the served model has the expected name", _models),
    NamedCheck("completion", "a plain completion returns counted tokens", _completion),
    NamedCheck("chat", "the chat template and endpoint work", _chat),
    NamedCheck("streaming", "a stream carries the same text as a whole answer and ends properly", _stream),
    NamedCheck("usage", "token counts are reported, the same streamed and unstreamed", _usage),
    NamedCheck("max-tokens", "outputs end exactly where asked, whatever a verify step accepted", _max_tokens),
    NamedCheck("stop-string", "a stop string cuts the output even inside a run of accepted drafts", _stop),
    NamedCheck("several-choices", "n > 1 works with speculation", _several),
    NamedCheck("temperature", "sampling is really sampled", _temperature, quick=False),
    NamedCheck("seed", "a seed makes sampling repeatable", _seed, quick=False),
    NamedCheck("json-schema", "constrained output obeys its schema with speculation on", _json_schema),
    NamedCheck("tools", "tool calls are parsed", _tools, quick=False),
    NamedCheck("unicode", "characters that span tokens are not torn", _unicode),
]
