"""The load generator over a real socket, against the stub."""

from __future__ import annotations

import pytest

from orchestrator.bench.load import Level, Target, run_ladder, run_load
from orchestrator.bench.metrics import Objective
from orchestrator.openai.records import Api
from tests.bench.stub_server import Script, running_stub

PROMPTS = [(f"p{i}", f"prompt {i}") for i in range(5)]


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("split", [0, 3])
def test_every_api_counts_the_same_tokens_whatever_the_chunking(api: Api, split: int) -> None:
    with running_stub(Script(split=split)) as stub:
        result = run_load(Target(stub.url, api=api, max_tokens=20), PROMPTS, 7, Level(concurrency=3))
        assert len(stub.seen) == 7
    assert (result.summary.requests, result.summary.failed, result.summary.tokens) == (7, 0, 140)
    assert [c.prompt_id for c in result.completions] == ["p0", "p1", "p2", "p3", "p4", "p0", "p1"]


def test_latencies_are_at_least_the_scripted_ones() -> None:
    with running_stub(Script(prefill_s=0.03, step_s=0.01, accept=(4,))) as stub:
        result = run_load(Target(stub.url, max_tokens=21), PROMPTS, 3, Level(concurrency=1), Objective(ttft_s=60))
    s = result.summary
    assert s.ttft.p50 is not None
    assert s.ttft.p50 >= 0.03
    assert s.itl.p50 is not None
    assert s.itl.p50 >= 0.0025
    assert s.token_gap.n == 60
    assert s.goodput_share == 1.0
    assert result.to_json()["level"]["label"] == "1 at once"


def test_open_loop_and_ladder() -> None:
    seen = []
    with running_stub() as stub:
        target = Target(stub.url, max_tokens=4)
        opened = run_load(target, PROMPTS, 6, Level(rate_per_s=200.0))
        ladder = run_ladder(target, PROMPTS, 4, [Level(concurrency=1), Level(concurrency=2)], on_level=seen.append)
    assert opened.summary.failed == 0
    assert [r.summary.requests for r in ladder] == [4, 6]
    assert seen == ladder


def test_request_bodies_say_what_was_asked() -> None:
    with running_stub() as stub:
        target = Target(
            stub.url, Api.CHAT, max_tokens=4, temperature=0.7, seed=10, thinking=False, extra={"top_p": 0.9}
        )
        run_load(target, PROMPTS, 2, Level(concurrency=1))
        first, second = stub.seen
    assert (first["seed"], second["seed"]) == (10, 11)
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert (first["top_p"], first["temperature"], first["ignore_eos"]) == (0.9, 0.7, True)


@pytest.mark.parametrize("fault", ["http500", "hang-up", "broken-stream", "no-done", "no-usage", "error-event"])
def test_failures_are_counted_as_failures(fault: str) -> None:
    with running_stub(Script(fault=fault)) as stub:
        summary = run_load(Target(stub.url, max_tokens=8), PROMPTS, 3, Level(concurrency=3)).summary
    assert (summary.requests, summary.failed, summary.tokens) == (3, 3, 0)
    assert summary.ttft.n == 0


def test_nobody_listening_is_a_failure_of_every_request() -> None:
    summary = run_load(Target("http://127.0.0.1:1"), PROMPTS, 2, Level(concurrency=1)).summary
    assert summary.failed == 2
