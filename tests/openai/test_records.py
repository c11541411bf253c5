"""Recorded event streams, replayed with known times, give exact records."""

from __future__ import annotations

import json

import pytest

from orchestrator.openai.records import Api, Assembler, Completion, finish_of


def native(ids: list[int], text: str, tokens: int, finish: str | None = None) -> str:
    meta = {"completion_tokens": tokens, "prompt_tokens": 5, "cached_tokens": 2, "finish_reason": finish}
    return json.dumps({"text": text, "output_ids": ids, "meta_info": meta})


def replay(api: Api, events: list[tuple[float, str]]) -> Completion:
    done = Completion(status=200)
    assembler = Assembler(api, done)
    for at_s, data in events:
        assembler.event(data, at_s)
    return done


@pytest.mark.parametrize(
    "chunks",
    [
        [([1], "a", 1), ([1, 2, 3], "abc", 3), ([1, 2, 3, 4], "abcd", 4)],
        [([1], "a", 1), ([2, 3], "bc", 3), ([4], "d", 4)],
    ],
    ids=["cumulative", "incremental"],
)
def test_native_stream_in_both_modes(chunks: list[tuple[list[int], str, int]]) -> None:
    events = [(float(i), native(*chunk)) for i, chunk in enumerate(chunks)]
    done = replay(Api.NATIVE, [*events, (9.0, "[DONE]")])
    assert (done.text, done.output_ids, done.completion_tokens) == ("abcd", [1, 2, 3, 4], 4)
    assert [(d.at_s, d.tokens, d.chars) for d in done.deliveries] == [(0, 1, 1), (1, 3, 2), (2, 4, 1)]
    assert (done.prompt_tokens, done.cached_tokens, done.terminated, done.ok) == (5, 2, True, True)


def test_chat_stream_with_reasoning_and_usage() -> None:
    def chunk(delta: dict[str, object], finish: str | None = None) -> str:
        return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    done = replay(
        Api.CHAT,
        [
            (0.1, chunk({"role": "assistant"})),
            (0.2, chunk({"reasoning_content": "hm"})),
            (0.4, chunk({"content": "yes"}, "stop")),
            (0.5, json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})),
            (0.6, "[DONE]"),
        ],
    )
    assert (done.text, done.reasoning, done.finish_reason) == ("yes", "hm", "stop")
    assert [(d.at_s, d.reasoning) for d in done.deliveries] == [(0.2, True), (0.4, False)]
    assert done.completion_tokens == 2
    assert done.ok


@pytest.mark.parametrize(
    ("event", "word"),
    [
        ("{broken", "not JSON"),
        ("[1]", "not an object"),
        ('{"error": {"message": "out of memory"}}', "out of memory"),
    ],
)
def test_bad_events_are_errors(event: str, word: str) -> None:
    done = replay(Api.NATIVE, [(0.0, native([1], "a", 1)), (1.0, event), (2.0, "[DONE]")])
    assert word in done.error
    assert not done.ok


def test_a_stream_without_end_mark_or_tokens_is_not_ok() -> None:
    assert not replay(Api.NATIVE, [(0.0, native([1], "a", 1))]).ok
    assert not replay(Api.NATIVE, [(0.0, "[DONE]")]).ok


def test_spec_details_of_the_openai_endpoint_reach_meta_info() -> None:
    body = {"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 4}}, "usage": {"completion_tokens": 9}}
    assert replay(Api.COMPLETIONS, [(0.0, json.dumps(body))]).meta_info == {"spec_verify_ct": 4}


def test_finish_reason_as_word_or_object() -> None:
    assert [finish_of(v) for v in ("stop", {"type": "length", "length": 8}, None, {})] == ["stop", "length", None, None]


def test_a_stream_that_goes_on_after_its_end_mark_is_no_answer() -> None:
    done = replay(Api.NATIVE, [(0.0, native([1], "a", 1)), (1.0, "[DONE]"), (2.0, native([1, 2], "ab", 2))])
    assert not done.ok
    assert "after its end mark" in done.error
    assert done.completion_tokens == 1


@pytest.mark.parametrize("text", ["<html>", "[1]", '{"error": "busy"}', '{"object": "error", "message": "busy"}', '{"meta_info": 3}'])  # fmt: skip
def test_a_whole_answer_that_is_none_is_an_error(text: str) -> None:
    done = Completion(status=200)
    Assembler(Api.NATIVE, done).whole(text, 1.0)
    assert not done.ok
    assert done.error


def test_usage_told_twice_or_with_each_event_counts_once() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    first = {"choices": [{"index": 0, "text": "ab"}], "usage": {**usage, "completion_tokens": 1}}
    events = [(0.0, first), (1.0, {"choices": [], "usage": usage}), (2.0, {"choices": [], "usage": usage})]
    done = replay(Api.COMPLETIONS, [*((at, json.dumps(event)) for at, event in events), (3.0, "[DONE]")])
    assert (done.completion_tokens, done.prompt_tokens, done.ok) == (2, 3, True)
