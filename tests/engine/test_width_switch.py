"""One server with several widths: the text never depends on them, and each accepts what a server of that width accepts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from harness import NEW_TOKENS, Answer, Engine, Pair, add_noise
from sglang_ddtree import control
from sglang_ddtree.config import DDTreeConfig, default_width
from sglang_ddtree.widths import AUTO_CODE, CHAIN_CODE, Table, WidthControl, code_of

WIDTHS = {"SGLANG_DDTREE_WIDTHS": "chain,15,32,64"}
TOKEN = "0123456789abcdef0123"


def switched(running: Engine, prompts: Sequence[Sequence[int]], codes: Sequence[int]) -> list[Answer]:
    """All prompts as one batch, with another width in every step."""
    requests = [running.add(prompt, NEW_TOKENS) for prompt in prompts]
    turn = itertools.cycle(codes)

    def switch() -> bool:
        running.worker.widths.switch(next(turn))
        return False

    running.run(requests, stop=switch)
    running.settle()
    return [Answer(list(r.output_ids)[:NEW_TOKENS], r.spec_verify_ct) for r in requests]


def test_text_does_not_depend_on_switches_in_mid_stream(pair: Pair, engine: type[Engine]) -> None:
    prompts = pair.prompts[:4]
    plain = [a.ids for a in engine.start(pair).generate(prompts)]
    running = engine.start(pair, "DDTREE", env=WIDTHS)
    add_noise(running)
    assert [a.ids for a in switched(running, prompts, [CHAIN_CODE, 64, 15, 32])] == plain
    # Again over the prefix cache, with requests that leave the batch at different times.
    longer = [prompt + text[: 5 * i] for i, (prompt, text) in enumerate(zip(prompts, plain, strict=True))]
    requests = [running.add(prompt, NEW_TOKENS - 5 * i) for i, prompt in enumerate(longer)]
    for code in itertools.cycle([64, CHAIN_CODE, 32]):
        running.worker.widths.switch(code)
        running.step()
        if all(request.finished() for request in requests):
            break
    assert [list(r.output_ids)[: NEW_TOKENS - 5 * i] for i, r in enumerate(requests)] == [
        text[5 * i :] for i, text in enumerate(plain)
    ]
    assert sum(request.cached_tokens for request in requests) > 0
    counts = running.worker.metrics.by_width
    assert all(counts[label].steps > 0 for label in ("chain", "15", "32", "64"))
    assert counts["chain"].tokens == counts["chain"].chain_tokens
    assert running.leaked_slots() == 0


def test_each_width_is_a_server_of_that_width(hybrid: Pair, engine: type[Engine]) -> None:
    """Same ids in the same number of steps as linear DFLASH and as a server that holds one budget."""
    prompts = hybrid.prompts[:3]
    want = {CHAIN_CODE: engine.start(hybrid, "DFLASH").generate(prompts)}
    want[32] = engine.start(hybrid, "DDTREE", 32).generate(prompts)
    running = engine.start(hybrid, "DDTREE", env=WIDTHS)
    for code, answers in want.items():
        running.worker.widths.switch(code)
        running.scheduler.flush_cache()
        assert running.generate(prompts) == answers


def test_per_node_states_serve_every_width_too(hybrid: Pair, engine: type[Engine]) -> None:
    plain = [a.ids for a in engine.start(hybrid).generate(hybrid.prompts[:2])]
    running = engine.start(hybrid, "DDTREE", env={**WIDTHS, "SGLANG_DDTREE_STATE_FREE": "0"})
    assert [a.ids for a in switched(running, hybrid.prompts[:2], [64, CHAIN_CODE, 15])] == plain


def test_table_and_auto_choose_by_the_batch(dense: Pair, engine: type[Engine]) -> None:
    plain = [a.ids for a in engine.start(dense).generate(dense.prompts[:3])]
    running = engine.start(dense, "DDTREE", env={**WIDTHS, "SGLANG_DDTREE_WIDTH": "1:64,2:32,3:chain"})
    for count, label in ((1, "64"), (2, "32"), (3, "chain")):
        running.scheduler.flush_cache()
        assert [a.ids for a in running.generate(dense.prompts[:count])] == plain[:count]
        assert running.worker.metrics.by_width[label].steps > 0
    running.worker.widths.switch(AUTO_CODE)
    for _ in range(2):
        running.scheduler.flush_cache()
        assert [a.ids for a in running.generate(dense.prompts[:3])] == plain
    state = control.state(running.worker)
    assert state["policy"] == "auto"
    assert state["estimates"]["step_ms"]["4"][0] > 0  # the chain was timed at this batch size
    assert state["estimates"]["tokens_per_step"][0] > 1


def test_control_messages_need_the_token(dense: Pair, engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.io_struct import GetInternalStateReq, SetInternalStateReq

    scheduler = engine.start(dense, "DDTREE", env=WIDTHS).scheduler
    assert not scheduler.set_internal_state(SetInternalStateReq(server_args={control.message_key(TOKEN): 15})).updated
    monkeypatch.setenv(control.TOKEN, TOKEN)
    wrong = SetInternalStateReq(server_args={control.message_key(TOKEN[1:]): 15})
    assert not scheduler.set_internal_state(wrong).updated
    assert scheduler.draft_worker.widths.current.label == "64"
    for width, held in ((15, True), ("chain", True), (16, False)):
        message = SetInternalStateReq(server_args={control.message_key(TOKEN): code_of(width)})
        assert scheduler.set_internal_state(message).updated is held
    shown = scheduler.get_internal_state(GetInternalStateReq()).internal_state["ddtree"]
    assert (shown["width"], shown["nodes"], shown["widths"]) == ("chain", 15, ["chain", "15", "32", "64"])


def config(**env: str) -> DDTreeConfig:
    named = {f"SGLANG_DDTREE_{name}": value for name, value in env.items()}
    return DDTreeConfig.read(16, default_width(16, named), named)


def test_widths_set_the_rows_and_the_spine() -> None:
    found = config(WIDTHS="64, chain,15", SPINE="4")
    assert [(w.label, w.rows, w.spine) for w in found.widths] == [("chain", 16, 15), ("15", 16, 4), ("64", 65, 4)]
    assert (found.width, found.start.name) == (65, "64")
    alone = config(WIDTHS="chain")
    assert (alone.width, alone.start.name) == (16, "chain")
    assert [w.label for w in config().widths] == ["31"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"WIDTHS": "chain,14"}, "from 15"),
        ({"WIDTHS": "chain,wide"}, "'wide'"),
        ({"WIDTHS": "15,64", "WIDTH": "auto"}, "with chain"),
        ({"WIDTHS": "chain,64", "WIDTH": "32"}, "one of chain, 64"),
        ({"WIDTHS": "chain,64", "WIDTH": "2:64,4:chain"}, "from batch size 1 on"),
        ({"WIDTHS": "chain,64", "WIDTH": "1:64,1:chain"}, "from batch size 1 on"),
    ],
)
def test_impossible_widths_are_refused_in_one_sentence(env: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        config(**env)
    assert words in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_width_that_the_arguments_contradict() -> None:
    with pytest.raises(ValueError, match="make it 65"):
        DDTreeConfig.read(16, 33, {"SGLANG_DDTREE_WIDTHS": "chain,64"})


def test_table_by_batch_size() -> None:
    table = config(WIDTHS="chain,32,64", WIDTH="1:64,4:32,16:chain").start
    assert isinstance(table, Table)
    assert [table.choose(bs).label for bs in (1, 3, 4, 15, 16, 400)] == ["64", "64", "32", "32", "chain", "chain"]


def test_switching_back_to_what_the_server_started_with() -> None:
    found = config(WIDTHS="chain,64", WIDTH="1:64,4:chain")
    widths = WidthControl(found.widths, found.start)
    widths.switch(code_of("chain"))
    assert widths.choose(1).label == "chain"
    widths.switch(code_of("start"))
    assert [widths.choose(bs).label for bs in (1, 4)] == ["64", "chain"]
    assert widths.switches == 3
    with pytest.raises(ValueError, match="not -2"):
        widths.switch(AUTO_CODE)  # no controller was given


@pytest.mark.parametrize("width", ["wide", 0, -1, True, None, 1.5, ""])
def test_what_is_no_width(width: object) -> None:
    with pytest.raises(ValueError, match="width must be"):
        code_of(width)  # type: ignore[arg-type]


def test_other_hosts_are_refused_whatever_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(control.TOKEN, TOKEN)
    request = SimpleNamespace(client=SimpleNamespace(host="10.0.0.7"), headers={control.HEADER: TOKEN}, method="GET")
    assert asyncio.run(control._width_endpoint(request)).status_code == 403


def test_a_token_that_could_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(control.TOKEN, "short")
    with pytest.raises(ValueError, match="16 characters"):
        control.token()
