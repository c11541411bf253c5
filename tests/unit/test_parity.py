"""The task `compare`: broken engines, and outputs that part (at a tie of the linear engine they are explained)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.hosts.inventory import HostConfig
from tasks import baseline_parity, parity
from tasks.samples import SAMPLE_PROMPTS, Sample, default_prompts
from tests.bench.stub_server import Script, running_stub
from tests.unit.test_baseline_parity import recorded

EXPECTED = [Sample(prompt.id, (5, 6, 7, 8), 3, 0.1) for prompt in default_prompts(SAMPLE_PROMPTS)]
LOG: list[str] = []


def task(bound: str) -> Any:
    config = HostConfig(name="one", transport="embedded", engine="sglang-cpu", model="tiny-dense")
    return SimpleNamespace(host=SimpleNamespace(config=config), settings={"parity_bound": bound}, log=LOG.append)


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A linear engine that prefers each token to the next one by 0.1 nats."""
    with running_stub(Script(gap=0.1)) as stub:
        monkeypatch.setattr(parity, "linear_engine", lambda _: contextlib.nullcontext(SimpleNamespace(url=stub.url)))
        LOG.clear()
        yield


def got(*ids: int) -> list[Sample]:
    """The expected samples, faster, the third with other ids."""
    faster = [replace(sample, steps=2) for sample in EXPECTED]
    return [*faster[:2], replace(faster[2], ids=ids), *faster[3:]]


def test_equal_outputs_ask_nobody() -> None:
    found = parity.comparison(task("0.25"), EXPECTED, got(5, 6, 7, 8), 15)
    assert (found["equal"], found["ties"]) == (SAMPLE_PROMPTS, 0)


def test_texts_that_part_where_the_linear_engine_is_undecided_are_explained(linear: None) -> None:
    found = parity.comparison(task("0.25"), EXPECTED, got(5, 8, 1, 1), 15)
    assert (found["equal"], found["ties"]) == (SAMPLE_PROMPTS - 1, 1)
    assert "at token 1: 8 instead of 6, which the linear engine prefers by 0.2000 nats" in LOG[0]


@pytest.mark.parametrize(
    ("bound", "ids", "why"),
    [
        ("0.25", (5, 9, 7, 8), "at token 1: 9 instead of 6"),  # 0.3 nats apart
        ("0.001", (5, 8, 7, 8), "at token 1: 8 instead of 6"),  # what the CPU engine is held to
        ("0.25", (5, 6, 7), "at token 3: None instead of 8"),  # one text just ends
        ("0.25", (5, 6, 7, 2000), "at token 3: 2000 instead of 8"),  # not among the likeliest
    ],
)
def test_other_differences_refuse_the_release(linear: None, bound: str, ids: tuple[int, ...], why: str) -> None:
    with pytest.raises(OrchestrateError, match=f"the linear service's tokens .1 of {SAMPLE_PROMPTS} prompts.*{why}"):
        parity.comparison(task(bound), EXPECTED, got(*ids), 15)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Run the task on what an engine once wrote: its samples of the baseline's prompts, and its trace."""

    def run(name: str) -> dict[str, Any]:
        judge, trace, samples = recorded(name)
        launch = SimpleNamespace(user=None)
        tree = [replace(sample, steps=2) for sample in EXPECTED]
        file = SimpleNamespace(prepare=lambda: None, env={"TRACE": "x"}, take=lambda: trace)
        monkeypatch.setattr(parity, "find_judge", lambda _: judge)
        monkeypatch.setattr(parity, "tree_engine", lambda *_: SimpleNamespace(name="proof", launch=launch))
        monkeypatch.setattr(parity, "TraceFile", lambda *_: file)
        monkeypatch.setattr(parity, "side_engine", lambda *_: contextlib.nullcontext("http://tree"))
        monkeypatch.setattr(parity, "take_samples", lambda *_: tree)
        monkeypatch.setattr(baseline_parity, "take_samples", lambda *_: samples)
        monkeypatch.setattr(parity, "hold_linear", lambda *_: None)
        ctx = task("0.001")
        ctx.output = lambda _: {"samples": [sample.to_json() for sample in EXPECTED]}
        ctx.progress = ctx.artifact = lambda *_: None
        return dict(parity.CompareWithLinear().apply(ctx))

    return run


def test_a_right_engine_is_held_step_by_step(compared: Callable[[str], dict[str, Any]]) -> None:
    found = compared("right_hybrid")
    assert found["equal"] == SAMPLE_PROMPTS
    assert found["offline"]["baseline"] == "tiny-hybrid"
    assert found["offline"]["tree"]["steps"] > 30


@pytest.mark.parametrize(
    "name", ["wrong_rope_depth", "stale_hybrid_state", "compaction_off_by_one", "slot_zero_masked"]
)
def test_a_broken_engine_ends_the_task_by_prompt_step_and_node(
    name: str, compared: Callable[[str], dict[str, Any]]
) -> None:
    said = r"DDTREE leaves the offline baseline tiny-\w+\.json: prompt code-\d+, step \d+ .*node at depth \d+"
    with pytest.raises(OrchestrateError, match=said) as caught:
        compared(name)
    assert caught.value.exit_code == 1
