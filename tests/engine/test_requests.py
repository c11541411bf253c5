"""What a request asks beside tokens - penalties, biases, grammars, log-probabilities - is served as without a tree."""

from __future__ import annotations

import json
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import Engine, Pair, add_noise, close_current
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_ddtree import ops
from sglang_ddtree.patches import request_refusal
from sglang_ddtree.penalties import path_tokens
from sglang_ddtree.target_tokens import target_tokens

PENALTIES: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.1},
    "repetition": {"repetition_penalty": 1.2},
    "least length": {"min_new_tokens": 40, "ignore_eos": False, "stop_token_ids": {10, 11, 12, 13, 14, 15}},
    "bias": {"logit_bias": {"300": 9.0, "17": -6.0}},
}
SCHEMA = {"enum": [{"ok": True, "n": 1}, {"ok": False, "n": 333}]}  # literals leave no room for white space


def ask(engine: Engine, pair: Pair, index: int, tokens: int = 48, **sampling: Any) -> Any:
    """Queue one prompt with these sampling parameters."""
    request = engine.add(pair.prompts[index], tokens)
    for name, value in sampling.items():
        setattr(request.sampling_params, name, value)
    return request


def answers(engine: Engine, pair: Pair) -> dict[str, list[int]]:
    """Every kind of penalty, and a plain request, in one batch."""
    requests = {name: ask(engine, pair, 1, **extra) for name, extra in PENALTIES.items()}
    requests["plain"] = ask(engine, pair, 1)
    engine.run(list(requests.values()))
    engine.settle()
    return {name: list(request.output_ids)[: request.finished_len or 48] for name, request in requests.items()}


def test_penalties_and_biases_are_those_of_decoding_token_by_token(pair, engine):
    plain = answers(engine.start(pair), pair)
    close_current()
    running = engine.start(pair, "DDTREE", 31)
    add_noise(running)
    assert answers(running, pair) == plain
    # A penalty that changed nothing would prove nothing.
    assert all(text != plain["plain"] for name, text in plain.items() if name != "plain")
    running.run([ask(running, pair, 2, 6)])
    assert running.worker.row_logits.penalties._known == {}


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_tokens_on_a_path_are_counted_as_on_paper(data):
    bs, depth, k, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)), 4, data.draw(st.integers(1, 20))
    seed = data.draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    logp = torch.randn(bs, depth, k, generator=generator).log_softmax(-1).sort(-1, descending=True).values
    ids = torch.randint(0, 3, (bs, depth, k), generator=generator)  # few tokens, so that paths repeat them
    tables = ops.tree_build(logp, ids, nodes)
    tables.tok[:, 0] = 1
    tokens, extra = path_tokens(tables.tok, tables.anc)
    for b in range(bs):
        for row in range(int(tables.count[b])):
            path, at = [], row
            while at > 0:
                path.append(int(tables.tok[b, at]))
                at = int(tables.par[b, at])
            counts = Counter(path)
            found = dict(zip(tokens[b, row].tolist(), extra[b, row].tolist(), strict=True))
            assert found == (dict(counts) if row else {1: 0})


def constrained(engine: Engine, pair: Pair) -> tuple[str, list[int], int]:
    """A request under a JSON schema beside a plain one: its text, the neighbour's ids, its verify rounds."""
    request, beside = engine.add(pair.prompts[0], 48), ask(engine, pair, 2)
    engine.scheduler.waiting_queue.remove(request)
    request.sampling_params.json_schema = json.dumps(SCHEMA)
    request.sampling_params.ignore_eos = False
    manager = engine.scheduler.grammar_manager
    if manager.process_req_with_grammar(request):
        while not (ready := manager.get_ready_grammar_requests()):
            pass
        assert ready == [request]
    engine.scheduler._add_request_to_queue(request)
    engine.run([request, beside])
    engine.settle()
    text = pair.tokenizer.decode(list(request.output_ids)[: request.finished_len], skip_special_tokens=True)
    return text, list(beside.output_ids)[:48], request.spec_verify_ct


def test_a_json_schema_holds_on_every_path_and_leaves_the_neighbour_alone(hybrid, engine):
    linear_text, linear_beside, linear_rounds = constrained(engine.start(hybrid, "DFLASH"), hybrid)
    close_current()
    running = engine.start(hybrid, "DDTREE", 31)
    text, beside, rounds = constrained(running, hybrid)
    assert (text, beside) == (linear_text, linear_beside)
    assert rounds <= linear_rounds
    assert json.loads(text) in SCHEMA["enum"]
    assert rounds < len(hybrid.tokenizer(text)["input_ids"])  # the tree was used, not one token at a time


def logprobs(engine: Engine, pair: Pair) -> tuple[list[int], list[float], list[list[float]]]:
    request = engine.add(pair.prompts[3], 40, return_logprob=True, top_logprobs_num=3)
    engine.run([request, ask(engine, pair, 4)])
    engine.settle()
    held = request.logprob
    return list(request.output_ids)[:40], held.output_token_logprobs_val[:40], held.output_top_logprobs_val[:40]


def test_logprobs_are_those_of_decoding_token_by_token(hybrid, engine):
    ids, wanted, top = logprobs(engine.start(hybrid), hybrid)
    close_current()
    running = engine.start(hybrid, "DDTREE", 31)
    got_ids, got, got_top = logprobs(running, hybrid)
    assert got_ids == ids
    assert len(got) == len(wanted) == 40
    assert all(math.isclose(a, b, abs_tol=2e-3) for a, b in zip(got, wanted, strict=True))
    for a, b in zip(got_top, top, strict=True):
        assert all(math.isclose(x, y, abs_tol=2e-3) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("field", ["return_hidden_states", "return_sampling_mask"])
def test_what_is_refused_names_the_field(field):
    sampling = SimpleNamespace(min_p=0.0)
    request = SimpleNamespace(return_hidden_states=False, return_sampling_mask=False, sampling_params=sampling)
    assert request_refusal(request) is None
    setattr(request, field, True)
    assert field in str(request_refusal(request))


@pytest.mark.parametrize("top_k", [1 << 30, 3])
def test_a_seeded_row_draws_what_sglang_draws_at_its_position(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers import sampler
    from sglang.srt.layers.sampler import sampling_from_probs_torch, top_k_top_p_min_p_sampling_from_probs_torch

    def drawn(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        column = torch.arange(logprobs.shape[1])[None]
        mixed = (
            (seed.long()[:, None] * 7919 + positions[:, None] * 104729 + column * 15485863) * 2654435761 % 4294967291
        )
        return (logprobs - (-(mixed.double() + 0.5).div(4294967291).log()).log()).argmax(1, keepdim=True)

    monkeypatch.setattr(sampler, "multinomial_with_seed", drawn)  # SGLang's own hashes with a GPU kernel
    torch.manual_seed(3)
    width, seeds = 6, torch.tensor([7, 11])
    both = SimpleNamespace(
        is_all_greedy=False, temperatures=torch.full((2, 1), 0.8), top_ks=torch.full((2,), top_k), top_ps=torch.ones(2),
        min_ps=torch.zeros(2), need_top_k_sampling=top_k < 64, need_top_p_sampling=False, need_min_p_sampling=False,
        sampling_seed=seeds,
    )  # fmt: skip
    logits, positions = torch.randn(2 * width, 64), torch.tensor([[4, 5, 5, 6, 6, 7], [9, 10, 10, 10, 11, 12]])
    found = target_tokens(logits, both, width, positions)
    for request in range(2):
        for row in range(width):
            probs = (logits[request * width + row] / 0.8).softmax(-1)[None]
            seed, place = seeds[request : request + 1], positions[request, row : row + 1]
            if top_k < 64:
                one = torch.ones(1)
                want = top_k_top_p_min_p_sampling_from_probs_torch(
                    probs, torch.tensor([top_k]), one, one * 0, False, seed, place
                )
            else:
                want = sampling_from_probs_torch(probs, seed, place)
            assert int(found[request, row]) == int(want)


def test_a_draft_of_nan_gives_one_token_a_step_is_counted_and_goes_on_serving(dense, engine):
    plain = [a.ids for a in engine.start(dense).generate(dense.prompts[:3], 20)]
    close_current()
    running = engine.start(dense, "DDTREE", 31)
    norm = running.worker.draft_model.norm.weight
    whole = norm.detach().clone()
    with torch.no_grad():
        norm.fill_(torch.nan)
    broken = running.generate(dense.prompts[:3], 20)
    assert [a.ids for a in broken] == plain
    assert [a.rounds for a in broken] == [19] * 3  # the first token comes from the prefill
    assert running.worker.metrics.fallbacks["draft_nan"] == 57
    with torch.no_grad():
        norm.copy_(whole)
    running.scheduler.flush_cache()
    mended = running.generate(dense.prompts[:3], 20)
    assert [a.ids for a in mended] == plain
    assert sum(a.rounds for a in mended) < 57
    assert running.worker.metrics.fallbacks["draft_nan"] == 57
    assert running.leaked_slots() == 0
