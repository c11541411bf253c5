"""Requests that went wrong for users of other engines, on the hybrid pair; docs/situations.md lists all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Engine, Pair, close_current
from sglang_ddtree import ops

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 48
JSON = 'Copy this JSON verbatim:\n{"id": 17, "tags": ["red", "blue"], "ok": true}\n{"id": 17, "tags": ["red", '
TEXTS = {
    "Spanish": "Escribe una página web divertida con un juego de globos de colores que explotan al tocarlos.",
    "colors": "Name 3 colors",
    "animals": "Name 3 animals",
    "verbatim": JSON,
}
STOPS = range(2, 7)  # which token of the text is made a stop token, one request each


class Seen:
    """What plain decoding said, and what DDTREE said to the same requests, with a draft that is useless every third step."""

    def __init__(self, pair: Pair, patch: pytest.MonkeyPatch) -> None:
        prompts = {name: list(pair.tokenizer(text)["input_ids"]) for name, text in TEXTS.items()}
        plain = Engine.start(pair)
        self.plain = {name: a.ids for name, a in zip(prompts, plain.generate([*prompts.values()], TOKENS), strict=True)}
        close_current()
        running = Engine.start(pair, "DDTREE", 31)
        self.commits: list[list[int]] = []  # tokens of each step, by request
        self._watch(patch)
        answers = running.generate([*prompts.values()], TOKENS)
        self.tree = {name: a.ids for name, a in zip(prompts, answers, strict=True)}
        self._ends(running, prompts["verbatim"])
        self.leaked = running.leaked_slots()

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        walk, topk_lse = ops.walk, ops.topk_lse

        def noted(*args: Any) -> Any:
            result = walk(*args)
            self.commits.append(result[1].tolist())
            return result

        def spoiled(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            logp, ids = topk_lse(logits, k)
            return logp, (ids + 777) % logits.shape[1] if len(self.commits) % 3 == 2 else ids

        patch.setattr(ops, "walk", noted)
        patch.setattr(ops, "topk_lse", spoiled)

    def _ends(self, running: Engine, prompt: list[int]) -> None:
        """Requests that meet a stop token, one cut by its length, and one that goes on from where the first stopped."""
        text = self.plain["verbatim"]
        self.stopped = [running.add(prompt, 40) for _ in STOPS]
        for at, request in zip(STOPS, self.stopped, strict=True):
            request.sampling_params.stop_token_ids = {text[at]}
            request.sampling_params.ignore_eos = False
        self.cut = running.add(prompt, 5)
        running.run([*self.stopped, self.cut])
        running.settle()
        more = running.add(prompt + text[:5], 20)
        running.run([more])
        self.after = list(more.output_ids)[:20]


@pytest.fixture(scope="module")
def seen(hybrid: Pair) -> Iterator[Seen]:
    with pytest.MonkeyPatch.context() as patch:
        yield Seen(hybrid, patch)
    close_current()


def test_every_text_is_the_targets_own(seen: Seen) -> None:
    assert seen.tree == seen.plain
    assert len({tuple(text) for text in seen.plain.values()}) == len(TEXTS)


def test_a_step_that_accepts_nothing_follows_one_that_accepted_several(seen: Seen) -> None:
    """Else the texts would say nothing about a state that a rejected step left behind."""
    whole = [step for step in seen.commits if len(step) == len(TEXTS)]
    assert any(a >= 3 and b == 1 for before, now in pairwise(whole) for a, b in zip(before, now, strict=True))


def test_a_stop_token_inside_an_accepted_path_ends_the_text_there(seen: Seen) -> None:
    text = seen.plain["verbatim"]
    for at, request in zip(STOPS, seen.stopped, strict=True):
        assert list(request.output_ids)[: request.finished_len] == text[: text.index(text[at]) + 1]
        assert request.finished_reason.to_json()["type"] == "stop"
    assert any(len(request.output_ids) > request.finished_len for request in seen.stopped)  # accepted, and cut off
    assert list(seen.cut.output_ids)[: seen.cut.finished_len] == text[:5]
    assert seen.cut.finished_reason.to_json()["type"] == "length"
    assert seen.after == text[5:25]
    assert seen.leaked == 0


def test_every_test_that_the_list_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "situations.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"
