"""The oracle against slow readings of the same rule: replayed trees, blocks one by one, batches of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from baselines import oracle, replay
from baselines.prompts import Prompt, load_prompts
from baselines.run import Request, make_baseline
from baselines.tree import TreePolicy, build_tree
from pairs import MODELS, PAIRS, load

NEW_TOKENS = 24
PROMPTS = [
    Prompt("a", "code", "def area(width, height):\n    "),
    Prompt("b", "code", "import os\n\n\nclass Reader:\n"),
    Prompt("c", "text", 'if __name__ == "__main__":\n    main('),
]


@pytest.fixture(params=PAIRS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def request_for(name: str, **more: object) -> Request:
    fields: dict[str, object] = {"budgets": (15, 64), "new_tokens": NEW_TOKENS, "batch": 3} | more
    return Request(MODELS / name / "target", MODELS / name / "draft", **fields)  # type: ignore[arg-type]


def test_acceptance_equals_replayed_trees(name: str) -> None:
    """Walk every anchor's tree with the target's own answers from sequential passes over its paths."""
    target, draft = load(name)
    prompt = PROMPTS[0].encode(target.tokenizer)
    greedy = target.greedy([prompt], oracle.continuation_length(NEW_TOKENS, 16))[0]
    record = oracle.measure(target, draft, "a", "", prompt, greedy, NEW_TOKENS, [15, 40], TreePolicy())
    features, _ = target.read([*prompt, *greedy], draft.config.taps, 0)
    context = draft.context(features)
    deep = 0
    for anchor in range(0, NEW_TOKENS, 3):
        own = [greedy[anchor + 1 : anchor + 16]]
        proposals = oracle.propose(target, draft, context, [greedy[anchor]], [len(prompt) + anchor], 32, own)
        for budget in (15, 40):
            tree = build_tree(proposals.log_probs[0], proposals.ids[0], budget, TreePolicy())
            path = replay.accepted_path(target, [*prompt, *greedy[: anchor + 1]], tree)
            assert record.anchors is not None
            assert record.anchors.tokens(str(budget), anchor) == len(path)
            assert [tree.token[row] for row in path[1:]] == greedy[anchor + 1 : anchor + len(path)]
            deep += len(path) - 1
    assert deep >= 8


def test_blocks_together_equal_blocks_alone(name: str) -> None:
    target, draft = load(name)
    ids = [*PROMPTS[1].encode(target.tokenizer), 5, 6, 7, 8, 9, 10]
    features, _ = target.read(ids, draft.config.taps, 0)
    own = [[7] * 15]
    both = oracle.propose(target, draft, draft.context(features), ids[4:6], [4, 5], 8, own * 2)
    for row, position in enumerate((4, 5)):
        context = draft.context(features[:position])
        alone = oracle.propose(target, draft, context, [ids[position]], [position], 8, own)
        torch.testing.assert_close(
            torch.tensor(both.log_probs[row]), torch.tensor(alone.log_probs[0]), atol=1e-4, rtol=1e-4
        )


def test_padding_in_a_batch_changes_nothing(name: str) -> None:
    target, _ = load(name)
    prompts = [p.encode(target.tokenizer) for p in PROMPTS]
    assert len({len(p) for p in prompts}) > 1
    together = target.greedy(prompts, NEW_TOKENS)
    assert together == [target.greedy([p], NEW_TOKENS)[0] for p in prompts]
    for prompt, text in zip(prompts, together, strict=True):
        follow = target.next_tokens(torch.tensor([prompt + text]))[0]
        assert follow[len(prompt) - 1 : -1].tolist() == text


def test_an_interrupted_run_continues_and_gives_the_same_file(name: str, tmp_path: Path) -> None:
    says: list[str] = []
    whole = make_baseline(request_for(name), PROMPTS, say=says.append)
    partial = tmp_path / "b.partial"
    make_baseline(request_for(name), PROMPTS[:2], partial, say=says.append)
    partial.write_text(partial.read_text() + '{"id": "cut')
    resumed = make_baseline(request_for(name), PROMPTS, partial, say=says.append)
    assert any("2 of 3 prompts are there" in s for s in says)
    assert [p.accept for p in resumed.prompts] == [p.accept for p in whole.prompts]
    assert [p.greedy_ids for p in resumed.prompts] == [p.greedy_ids for p in whole.prompts]
    says.clear()
    make_baseline(request_for(name, budgets=(15,)), PROMPTS[:1], partial, say=says.append)
    assert not any("earlier run" in s for s in says)


def test_larger_trees_accept_no_less_and_steps_fill_the_text(name: str) -> None:
    baseline = make_baseline(request_for(name, budgets=(1, 15, 16, 64, 256)), PROMPTS, say=lambda _: None)
    for record in baseline.prompts:
        assert record.anchors is not None
        for anchor in range(NEW_TOKENS):
            tokens = [record.anchors.tokens(str(b), anchor) for b in (1, 15, 16, 64, 256)]
            assert tokens == sorted(tokens)
            assert all(edge >= 0 for edge in record.anchors.edges[anchor][: len(record.anchors.entered[anchor])])
            missed = record.anchors.missed[anchor]
            # A token is in no tree because its path scores too low, or because k others are likelier.
            assert (
                missed is None
                or missed <= record.anchors.cutoffs["256"][anchor]
                or record.anchors.edges[anchor][-1] < 0
            )
        for steps in record.accept.values():
            assert sum(steps) >= NEW_TOKENS - 1 > sum(steps[:-1])
        assert all(margin >= 0 for margin in record.margins)
    rates = baseline.summary()["all"]["tokens_per_step"]
    assert 1.0 < rates["chain"] <= rates["256"]
    assert baseline.summary()["all"]["break_even_step_cost"]["256"] == pytest.approx(
        rates["256"] / rates["chain"], abs=1e-3
    )


def test_own_prompt_sets_are_whole() -> None:
    from baselines.prompts import OWN_SETS

    names = sorted(p.stem for p in OWN_SETS.glob("*.jsonl"))
    assert names == ["chat", "code", "json", "long_context", "loops", "math", "multilingual", "verbatim"]
    prompts = [p for n in names for p in load_prompts(n)]
    assert len({p.id for p in prompts}) == len(prompts) >= 40
    assert {p.category for p in prompts} == set(names)
    tokenizer = load("tiny-dense")[0].tokenizer
    assert max(len(p.encode(tokenizer)) for p in prompts) < 3800


@pytest.mark.parametrize(
    ("file", "content", "count", "first"),
    [
        ("a.txt", "one\ntwo\n\nthree\n", 3, "one"),
        ("b.txt", "first\nprompt\n---\nsecond\n", 2, "first\nprompt"),
        ("c.jsonl", '{"question": "why"}\n\n{"prompt": "so"}\n"bare"\n', 3, "why"),
        ("d.json", '["x", {"text": "y"}]', 2, "x"),
        ("e.jsonl", '{"question_id": 81, "turns": ["first turn", "second"]}\n', 1, "first turn"),
        ("f.jsonl", '{"conversations": [{"from": "human", "value": "hello"}]}\n', 1, "hello"),
    ],
)
def test_users_own_sets_are_read(tmp_path: Path, file: str, content: str, count: int, first: str) -> None:
    path = tmp_path / file
    path.write_text(content)
    prompts = load_prompts(path)
    assert len(prompts) == count
    assert (prompts[0].text or prompts[0].messages[0]["content"]) == first
    assert json.dumps([p.id for p in prompts])


def test_the_shipped_baseline_is_of_the_shipped_pair_and_comes_out_again(name: str) -> None:
    from baselines.baseline import load_baseline
    from baselines.hashing import model_hash, tokenizer_hash

    shipped = load_baseline(MODELS.parent / "baselines" / "data" / f"{name}.json")
    folder = MODELS / name
    shipped.require_models(
        model_hash(folder / "target"), model_hash(folder / "draft"), tokenizer_hash(folder / "target")
    )
    prompts = load_prompts("code")
    assert [p.id for p in shipped.prompts] == [p.id for p in prompts]
    again = make_baseline(
        request_for(name, budgets=tuple(shipped.budgets), new_tokens=shipped.new_tokens),
        prompts[:1],
        say=lambda _: None,
    )
    assert again.prompts[0].greedy_ids == shipped.prompts[0].greedy_ids
    assert again.prompts[0].accept == shipped.prompts[0].accept
