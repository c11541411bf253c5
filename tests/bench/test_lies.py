"""Servers that lie about what they did: no such row enters a verdict, and nothing that they send ends the program."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.by_url import Servers
from orchestrator.bench.load import Level, Target, run_load
from orchestrator.bench.paired import run_paired_sweep
from orchestrator.bench.prompts import Prompt
from orchestrator.bench.verdict import Decision
from orchestrator.errors import OrchestrateError
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.records import Api
from tests.bench.stub_server import Script, Stub, running_stub
from tests.spoil import spoilt

PROMPTS = [Prompt(id=f"p{i}", category="c", text=f"word {i} and more") for i in range(4)]
RAW = ("<html>502</html>", "", "null", "[]", "{", "NaN", '{"error": "x"}', '{"a": 1e999}', "[" * 20_000)
Event = dict[str, Any]


class Liar(Stub):
    """Changes each event of a native answer."""

    lie: Callable[[Event], object]

    async def _events(self, *arguments: Any) -> AsyncIterator[str]:
        async for data in super()._events(*arguments):
            event = json.loads(data) if data.startswith("{") else None
            if event is not None:
                type(self).lie(event)
            yield data if event is None else json.dumps(event)


class Refuser(Stub):
    """Answers 200 with a page instead of a stream, as gateways do."""

    async def _generate(self, writer: asyncio.StreamWriter, path: str, body: Event) -> bool:
        self._send(writer, 200, "<html>All servers are busy</html>")
        return True


def threefold(event: Event) -> None:
    event["meta_info"]["completion_tokens"] *= 3


def half_kept(event: Event) -> None:
    event["output_ids"] = event["output_ids"][: len(event["output_ids"]) // 2]


def nothing_sent(event: Event) -> None:
    event["output_ids"], event["text"] = [], ""


def other_text_without_ids(event: Event) -> None:
    del event["output_ids"]
    event["text"] = event["text"].upper()


def steps_below_zero(event: Event) -> None:
    event["meta_info"]["spec_verify_ct"] = -7


def tokens_below_zero(event: Event) -> None:
    event["meta_info"]["completion_tokens"] *= -1


def never_ends(event: Event) -> None:
    event["meta_info"]["finish_reason"] = {"type": "length"}
    event["error"] = {"message": "out of memory"}


LIES = (
    (threefold, "usage-wrong"), (half_kept, "not-lossless"), (nothing_sent, "usage-wrong"),
    (other_text_without_ids, "not-lossless"), (steps_below_zero, "no-speculation"), (tokens_below_zero, "output-short"),
    (never_ends, "request-failed"),
)  # fmt: skip


@pytest.mark.parametrize(("lie", "rule"), LIES, ids=lambda value: getattr(value, "__name__", value))
def test_a_tree_that_lies_is_never_adopted(lie: Callable[[Event], object], rule: str) -> None:
    kind = type("OneLiar", (Liar,), {"lie": staticmethod(lie)})
    with running_stub(Script(step_s=0.002)) as linear, running_stub(Script(), kind) as tree:
        servers = Servers(Endpoint(linear.url), {0: Endpoint(tree.url)})
        result = run_paired_sweep(servers.open_linear, servers.open_tree, [15], PROMPTS, 1, 32, min_pairs=1)
    rows = [row for row in result.rows if row.arm == "tree"]
    assert rows
    assert all(rule in {finding.rule for finding in row.findings} for row in rows)
    assert all(row.valid for row in result.rows if row.arm == "linear")
    assert result.verdict.decision is Decision.INVALID


def test_a_page_with_200_is_a_failed_request_that_shows_the_page() -> None:
    with running_stub(Script(), Refuser) as stub:
        (done,) = run_load(Target(stub.url), [("p", "hello")], 1, Level(concurrency=1)).completions
    assert (done.ok, done.status) == (False, 200)
    assert "All servers are busy" in done.error


class Broken(Stub):
    """Every third answer or event is something else."""

    chance = random.Random()

    def _spoilt(self, body: Any) -> str:
        return self.chance.choice(RAW) if self.chance.random() < 0.4 else json.dumps(spoilt(body, self.chance))

    def _send(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        super()._send(writer, status, self._spoilt(body) if self.chance.random() < 0.3 else body)

    async def _events(self, *arguments: Any) -> AsyncIterator[str]:
        async for data in super()._events(*arguments):
            spoil = data.startswith("{") and self.chance.random() < 0.1
            yield self._spoilt(json.loads(data)) if spoil else data


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_a_server_sends_a_load_has_figures_and_a_sweep_ends(seed: int) -> None:
    Broken.chance.seed(seed)
    with running_stub(Script(chain=2.0, nodes=15, gap=0.05), Broken) as stub:
        for api in Api:
            summary = run_load(Target(stub.url, api=api, max_tokens=8), [("p", "hi")], 3, Level(concurrency=3)).summary
            assert summary.requests == 3
        servers = Servers(Endpoint(stub.url), {0: Endpoint(stub.url)})
        try:
            run_paired_sweep(servers.open_linear, servers.open_tree, [15], PROMPTS, 1, 8, min_pairs=1).to_json()
        except OrchestrateError as error:
            assert str(error)
