"""DDTREE's text is the target's own text, and no budget accepts less than linear DFLASH."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Answer, Engine, Pair, add_noise, close_current

BUDGETS = (15, 16, 32, 64)
Answers = dict[str, list[Answer]]


def answer(engine: Engine, pair: Pair) -> Answers:
    """All prompts one at a time, then in batches of four."""
    alone = []
    for prompt in pair.prompts:
        engine.scheduler.flush_cache()
        alone += engine.generate([prompt])
    engine.scheduler.flush_cache()
    batched = engine.generate(pair.prompts[:4]) + engine.generate(pair.prompts[4:])
    assert engine.leaked_slots() == 0
    return {"alone": alone, "batch of 4": batched}


@pytest.fixture(scope="session")
def answers() -> Callable[[Pair, str | None, int | None], Answers]:
    """Answers of (pair, algorithm, nodes), each computed once in a session."""
    known: dict[tuple[str, str | None, int | None], Answers] = {}

    def get(pair: Pair, algorithm: str | None, nodes: int | None = None) -> Answers:
        key = (pair.name, algorithm, nodes)
        if key not in known:
            known[key] = answer(Engine.start(pair, algorithm, nodes), pair)
            close_current()
        return known[key]

    return get


def ids(found: Answers) -> dict[str, list[list[int]]]:
    return {mode: [a.ids for a in group] for mode, group in found.items()}


def tokens_per_round(found: Answers) -> float:
    """Mean tokens per verify round over all prompts, alone."""
    group = found["alone"]
    return sum(len(a.ids) for a in group) / sum(a.rounds for a in group)


def test_batching_does_not_change_the_text(pair, answers):
    found = ids(answers(pair, None))
    assert found["alone"] == found["batch of 4"]
    assert len({tuple(text) for text in found["alone"]}) > 1


def test_linear_dflash_gives_the_targets_text(pair, answers):
    assert ids(answers(pair, "DFLASH")) == ids(answers(pair, None))
    assert tokens_per_round(answers(pair, "DFLASH")) > 1.2  # else the tree has nothing to improve on


@pytest.mark.parametrize("nodes", BUDGETS)
def test_ddtree_gives_the_targets_text(pair, nodes, answers):
    assert ids(answers(pair, "DDTREE", nodes)) == ids(answers(pair, None))


@pytest.mark.parametrize("nodes", BUDGETS)
def test_tree_accepts_at_least_what_the_chain_does(pair, nodes, answers):
    tree, chain = tokens_per_round(answers(pair, "DDTREE", nodes)), tokens_per_round(answers(pair, "DFLASH"))
    assert tree >= chain


def test_chain_shaped_tree_is_linear_dflash_round_for_round(pair, answers, engine):
    """One candidate per position leaves the chain, with padding rows behind it."""
    running = engine.start(pair, "DDTREE", 24, env={"SGLANG_DDTREE_TOPK": "1"})
    linear = answers(pair, "DFLASH")["batch of 4"]
    assert running.generate(pair.prompts[:4]) + running.generate(pair.prompts[4:]) == linear


def test_spine_guarantee_needs_no_more_rounds_than_the_chain(pair, answers, engine):
    """With the whole spine in the tree no round accepts less than the chain would have accepted there."""
    running = engine.start(pair, "DDTREE", 32, env={"SGLANG_DDTREE_SPINE": "15"})
    found = running.generate(pair.prompts)
    assert [a.ids for a in found] == ids(answers(pair, None))["alone"]
    snapshot = running.worker.metrics.snapshot()
    assert snapshot["ddtree_accept_length"] >= snapshot["ddtree_accept_length_chain"]
    linear = answers(pair, "DFLASH")["alone"]
    assert sum(a.rounds for a in found) <= sum(a.rounds for a in linear)


@pytest.mark.parametrize("state_free", ["1", "0"])
def test_text_holds_when_siblings_are_accepted_often(pair, state_free, answers, engine):
    running = engine.start(pair, "DDTREE", 31, env={"SGLANG_DDTREE_STATE_FREE": state_free})
    add_noise(running)
    assert [a.ids for a in running.generate(pair.prompts)] == ids(answers(pair, None))["alone"]
    assert running.leaked_slots() == 0
    assert running.worker.metrics.rows_moved > 100
    assert (running.worker.state_free is not None) == (pair.name == "tiny-hybrid" and state_free == "1")


def test_state_free_hybrid_allocates_no_state_per_node(hybrid, engine):
    def fields(running: Engine) -> list[str]:
        cache = running.scheduler.tp_worker.model_runner.req_to_token_pool.mamba_pool.mamba_cache
        return [name for name in vars(cache) if name.startswith("intermediate")]

    assert fields(engine.start(hybrid, "DDTREE", 15)) == []
    assert fields(engine.start(hybrid, "DDTREE", 15, env={"SGLANG_DDTREE_STATE_FREE": "0"})) != []
