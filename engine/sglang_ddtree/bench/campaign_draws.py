"""Sampled answers of a DDTREE server against one that does not speculate: their distribution, and seeds draw by draw."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from .campaign_plan import Reference
from .chi_squared import homogeneity
from .serve import TIE_NATS
from .server import Server

P_LEAST = 1e-4  # a dozen tests: a right server fails one of them once in a thousand runs
TOP_PS = (0.8, 0.75, 0.85, 0.7, 0.9, 0.65, 0.95)
CLEARANCE = 0.02  # of a nucleus' edge; bfloat16 logits move a probability of 0.8 by up to 0.01
LIKELY = 0.03  # paths less likely than this are too rare to make a difference
NOTED = 0.01  # of a token's share: whether a rarer one is in a nucleus shows in no test
TOKENS = 5  # of a draw
IdLists = list[list[int]]


def sampling(reference: Server, arm: Server, prompt: list[int], draws: int, batch: int = 32) -> dict[str, Any]:
    """The distribution of sampled continuations against the reference's; a hotter one must be told apart."""
    some, fewer = (_clear_top_p(reference, prompt, *shape) for shape in ((1.0, TOP_PS), (0.7, TOP_PS[::-1])))
    settings: dict[str, dict[str, Any]] = {
        "T 0.7": {"temperature": 0.7}, "T 1.0": {"temperature": 1.0}, f"T 1.0 top-p {some}": {"temperature": 1.0, "top_p": some},
        "T 1.0 top-k 8": {"temperature": 1.0, "top_k": 8},
        f"T 0.7 top-k 20 top-p {fewer}": {"temperature": 0.7, "top_k": 20, "top_p": fewer},
        "T 1.0 min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
    }  # fmt: skip
    rows, ok, seen, tested = {}, True, {}, 0
    for name, extra in settings.items():
        with ThreadPoolExecutor(2) as pool:
            a, b = pool.map(lambda server, x=extra: _draw(server, prompt, draws, batch, x), (reference, arm))  # type: ignore[misc]
        seen[name] = b
        tests = {
            # The second token is the first that a tree produced; pairs and the last token look further down the path.
            "second token": homogeneity([x[1] for x in a], [x[1] for x in b]),
            "first three": homogeneity([tuple(x[:3]) for x in a], [tuple(x[:3]) for x in b]),
            "fifth token": homogeneity([x[4] for x in a], [x[4] for x in b]),
        }
        rows[name] = {k: {"chi2": s, "freedom": f, "p": p} for k, (s, f, p) in tests.items()}
        ok &= all(p >= P_LEAST for *_, p in tests.values())
        tested += sum(freedom > 0 for _, freedom, _ in tests.values())
    power = homogeneity([x[1] for x in seen["T 0.7"]], [x[1] for x in seen["T 1.0"]])[2]
    return {"ok": ok and power < P_LEAST, "draws": draws, "tests": tested, "p_of_two_temperatures": power, **rows}


def _draw(server: Server, prompt: list[int], draws: int, batch: int, extra: dict[str, Any]) -> IdLists:
    """``draws`` continuations; the reference's are drawn once."""

    def draw() -> IdLists:
        found: IdLists = []
        while len(found) < draws:
            found += [x["output_ids"] for x in server.generate([prompt] * batch, TOKENS, **extra)]
        return found[:draws]

    return server.once(json.dumps([prompt, draws, extra]), draw) if isinstance(server, Reference) else draw()


def _clear_top_p(reference: Server, prompt: list[int], temperature: float, choices: Sequence[float]) -> float:
    """The first of ``choices`` that lies on no nucleus' edge: there one bfloat16 step lets a token in or keeps it out."""
    edges = list(_edges(reference, prompt, temperature))

    def distance(top_p: float) -> float:
        return min((abs(top_p - edge) for edge in edges), default=1.0)

    return next((top_p for top_p in choices if distance(top_p) >= CLEARANCE), max(choices, key=distance))


def _edges(reference: Server, prompt: list[int], temperature: float) -> Iterator[float]:
    """Sums of the likeliest tokens' probabilities, where they can end a nucleus, at every token of every likely draw."""
    paths: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for _ in range(TOKENS):
        longer = []
        for path, probability in paths:
            ranked = ranking(reference, [*prompt, *path])
            weights = [math.exp(value / temperature) for value, _ in ranked]
            total = 1.0 if temperature == 1.0 else sum(weights)  # of the likeliest, for the rest is not known
            shares = [weight / total for weight in weights]
            sums = accumulate(shares)
            yield from (edge for edge, following in zip(sums, shares[1:], strict=False) if following >= NOTED)
            longer += [((*path, token), probability * share) for share, (_, token) in zip(shares, ranked, strict=True)]
        paths = [(path, probability) for path, probability in longer if probability >= LIKELY]


def ranking(server: Server, ids: list[int], count: int = 128) -> list[tuple[float, int]]:
    """(log-probability, token) of the ``count`` likeliest next tokens, likeliest first."""
    body = {
        "input_ids": ids, "return_logprob": True, "top_logprobs_num": count,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
    }  # fmt: skip
    top = server.post("/generate", body)["meta_info"]["output_top_logprobs"][0]
    return [(value, token) for value, token, *_ in top]


def seeds(reference: Server, arm: Server, asked: IdLists, tokens: int = 48) -> dict[str, Any]:
    """Seeded sampling is repeatable, alone and in a batch, and draws what decoding token by token draws.

    A seed fixes the noise, not the logits: where two answers part, the draw must have been a tie within what bfloat16
    logits leave open, which the noise itself decides.
    """
    settings = [{"temperature": 0.8, "sampling_seed": 100 + i, "top_k": 40 if i % 2 else -1} for i in range(len(asked))]
    once = [arm.generate(ids, tokens, **s)["output_ids"] for ids, s in zip(asked, settings, strict=True)]
    again = [arm.generate(ids, tokens, **s)["output_ids"] for ids, s in zip(asked, settings, strict=True)]
    wanted = [reference.generate(ids, tokens, **s)["output_ids"] for ids, s in zip(asked, settings, strict=True)]
    other = arm.generate(asked[0], tokens, **{**settings[0], "sampling_seed": 7})["output_ids"]
    partings = []
    for ids, s, want, got in zip(asked, settings, wanted, once, strict=True):
        at = next((i for i, (x, y) in enumerate(zip(want, got, strict=True)) if x != y), None)
        if at is not None:
            ranked = ranking(reference, ids + want[:at])
            gap = draw_gap(ranked, want[at], got[at], s, len(ids) + at - 1)
            partings.append({"at": at, "want": want[at], "got": got[at], "gap": gap, "top_k": s["top_k"]})
    ok = once == again and other != once[0] and all(row["gap"] <= TIE_NATS for row in partings)
    return {"ok": ok, "repeated_equal": once == again, "equal_to_reference": len(asked) - len(partings), "of": len(asked),
            "partings": partings, "another_seed_differs": other != once[0]}  # fmt: skip


def draw_gap(ranked: list[tuple[float, int]], want: int, got: int, setting: dict[str, Any], position: int) -> float:
    """By how many nats a logit must be off for a seeded draw to give ``got`` where the reference drew ``want``.

    Both draw the token whose logit / temperature and noise have the greatest sum.  With a filter SGLang's noise belongs
    to a token's rank, so there two tokens of nearly equal logits that change places are a tie as well.
    """
    places = {token: rank for rank, (_, token) in enumerate(ranked)}
    if want not in places or got not in places:
        return 99.0
    filtered = setting["top_k"] > 0
    columns = [places[token] if filtered else token for token in (want, got)]
    noise = seeded_noise(setting["sampling_seed"], position, columns)
    logits = [ranked[places[token]][0] for token in (want, got)]
    draw = logits[0] - logits[1] + setting["temperature"] * (noise[0] - noise[1])
    return min(abs(draw), abs(logits[0] - logits[1])) if filtered else abs(draw)


def seeded_noise(seed: int, position: int, columns: list[int]) -> list[float]:
    """SGLang's Gumbel noise of a draw; its hash runs on a GPU."""
    import torch
    from sglang.srt.layers.sampler import murmur_hash32

    place = {"device": "cuda"}
    hashed = murmur_hash32(
        torch.tensor([seed], **place).to(torch.uint64), torch.tensor([position], **place), torch.arange(max(columns) + 1, **place)
    )  # fmt: skip
    uniform = hashed.to(torch.float64)[0, columns] / torch.iinfo(torch.uint32).max
    return (-(-uniform.log()).log()).tolist()  # type: ignore[no-any-return]
