"""The smoke suite against the stub: all good, and each fault found by the check that should find it."""

from __future__ import annotations

import pytest

from orchestrator.openai.client import Client, graphs_on, server_identity
from orchestrator.openai.endpoint import Endpoint
from orchestrator.openai.records import Api
from orchestrator.openai.smoke import all_checks, reference_of, run_smoke, smoke_passed
from tests.bench.stub_server import Script, running_stub


def outcomes(script: Script, **kwargs: object) -> dict[str, str]:
    with running_stub(script) as stub:
        return {r.name: r.outcome for r in run_smoke(stub.url, **kwargs)}  # type: ignore[arg-type]


def test_a_good_server_passes_whatever_the_chunking() -> None:
    with running_stub(Script(split=3, api_key="k")) as stub:
        results = run_smoke(Endpoint(stub.url + "/v1", "k"), reference=reference_of(Endpoint(stub.url, "k")))
    assert smoke_passed(results)
    assert [r.name for r in results] == [c.name for c in all_checks()]
    assert {r.name for r in results if r.ok is None} == {"tools"}
    assert all(r.proves and r.detail for r in results)
    assert results[0].to_json()["outcome"] == "passed"


@pytest.mark.parametrize(
    ("script", "name", "outcome"),
    [
        (Script(fault="dead-model"), "readiness", "failed"),
        (Script(fault="no-usage"), "usage", "failed"),
        (Script(fault="no-done"), "streaming", "failed"),
        (Script(fault="broken-stream"), "streaming", "failed"),
        (Script(fault="error-event"), "streaming", "failed"),
        (Script(fault="short"), "max-tokens", "failed"),
        (Script(fault="http500"), "completion", "failed"),
        (Script(fault="bad-400"), "malformed", "failed"),
        (Script(fault="bad-400"), "oversized", "failed"),
        (Script(fault="busy"), "metrics", "passed"),
        (Script(metrics=False), "metrics", "not offered"),
        (Script(chat_template=False), "chat", "not offered"),
        (Script(chat_template=False), "json-schema", "not offered"),
        (Script(), "wrong-key", "not offered"),
        (Script(), "lossless", "not offered"),
    ],
)
def test_each_fault_shows_in_its_check(script: Script, name: str, outcome: str) -> None:
    assert outcomes(script, only=[name, "chat"])[name] == outcome


def test_a_server_with_another_output_is_not_lossless() -> None:
    with running_stub(Script()) as good, running_stub(Script(salt="x")) as other:
        (result,) = run_smoke(other.url, only=["lossless"], reference=reference_of(good.url))
    assert result.ok is False
    assert "differs from the reference" in result.detail


def test_nothing_listening_fails_every_check_and_raises_nothing() -> None:
    results = run_smoke("http://127.0.0.1:1", only=["liveness", "completion", "malformed", "aborted"], timeout_s=2)
    assert [r.ok for r in results] == [False, False, False, False]
    assert not smoke_passed(results)


def test_a_server_that_hangs_up_passes_no_check_and_breaks_none() -> None:
    with running_stub(Script(fault="hang-up")) as stub:
        results = run_smoke(stub.url, reference=reference_of(stub.url), timeout_s=5)
    assert {r.ok for r in results} <= {False, None}
    assert not smoke_passed(results)


def test_no_check_at_all_is_not_a_pass() -> None:
    assert not smoke_passed([])


def test_the_client_survives_a_server_that_hangs_up() -> None:
    with running_stub(Script(fault="hang-up")) as stub, Client(stub.url) as client:
        done = client.complete(Api.NATIVE, {"text": "a", "stream": True})
    assert done.error
    assert not done.ok


def test_identity_follows_restarts_and_graphs_follow_the_config() -> None:
    assert server_identity({"random_seed": 1}) != server_identity({"random_seed": 2})
    assert server_identity({"random_seed": 1, "other": 5}) == server_identity({"random_seed": 1})
    assert graphs_on({"device": "cpu", "disable_cuda_graph": False}) is None
    assert graphs_on({"device": "cuda", "disable_cuda_graph": True}) is False
    assert graphs_on({"device": "cuda", "cuda_graph_config": {"decode": {"backend": "full"}}}) is True
    assert graphs_on({"device": "cuda", "cuda_graph_config": {"decode": {"backend": "disabled"}}}) is False
    assert graphs_on({}) is None
