"""What the command line does with servers that run already: sweep by address, load ladder, report with imports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bench.result import sweep_from_json
from orchestrator.cli import main
from orchestrator.store.store import open_store
from tests.bench.stub_server import Script, Stub, running_stub
from tests.bench.test_regression import Bench
from tests.bench.test_report import SERVING, sweep

Call = Callable[..., dict[str, Any]]
TOKEN = "0123456789abcdef"
QUICK = ("--budgets", "15,32", "--max-tokens", "32", "--set", "group_size=1")


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command line with --json, checks its exit code, and returns its document."""
    monkeypatch.setenv("TREE_TOKEN", TOKEN)
    (tmp_path / "prompts.txt").write_text("\n".join(f"prompt number {i} says" for i in range(12)))

    def called(*argv: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main.run([*argv, "--json", "--hosts", str(tmp_path / "hosts.yaml")]) == code, capsys.readouterr().err
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return called


@pytest.fixture
def servers(busy_machine: None) -> Iterator[tuple[Stub, Stub]]:
    linear = Script(step_s=0.003, accept=(1,), algorithm="DFLASH")
    tree = Script(step_s=0.003, accept=(8,), algorithm="DDTREE", nodes=32, token=TOKEN)
    with running_stub(linear) as a, running_stub(tree) as b:
        yield a, b


def by_url(servers: tuple[Stub, Stub], tmp_path: Path, *more: str) -> tuple[str, ...]:
    prompts = ("--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "out"))
    return ("bench", "--linear-url", servers[0].url, "--tree-url", servers[1].url + "/v1", *QUICK, *prompts, *more)


def test_two_servers_are_measured_by_address_and_an_interrupted_sweep_goes_on(
    call: Call, servers: tuple[Stub, Stub], tmp_path: Path
) -> None:
    switched = by_url(servers, tmp_path, "--control-token", "env:TREE_TOKEN")
    first = call(*switched, "--pairs", "4", code=9)
    assert first["verdict"]["decision"] == "inconclusive"
    rows = tmp_path / "out" / "rows.jsonl"
    assert len(rows.read_text().splitlines()) == len(first["rows"]) == 16
    rows.write_text(rows.read_text() + '{"arm": "tree", "bud')  # cut off in the middle of a row
    asked = len(servers[0].seen)
    assert "go on with that sweep" in call(*switched, "--pairs", "10", code=2)["error"]
    found = call(*switched, "--pairs", "10", "--resume")
    assert (found["verdict"]["decision"], len(found["rows"])) == ("adopt", 40)
    # each prompt once to find loops, six more pairs of each budget, and the warm-up of a new client
    assert len(servers[0].seen) - asked == 12 + 12 + 4
    assert servers[1].widths == [15] * 4 + [32] * 4 + [15] * 6 + [32] * 6
    kept = sweep_from_json(json.loads((tmp_path / "out" / "bench.json").read_text()))
    assert kept.verdict.decision.value == "adopt"
    assert "Paired sweep of two servers" in Path(found["run_report"]).read_text()


def test_a_sweep_that_broke_off_goes_on_with_the_same_servers_only(
    call: Call, servers: tuple[Stub, Stub], tmp_path: Path
) -> None:
    """Without its report a sweep was not finished; a server that was started again may be another engine."""
    switched = by_url(servers, tmp_path, "--control-token", "env:TREE_TOKEN", "--pairs", "1")
    first = call(*switched, code=9)["rows"]
    (tmp_path / "out" / "bench.json").unlink()
    assert call(*switched, code=9)["rows"] == first
    (tmp_path / "out" / "bench.json").unlink()
    servers[1].boots += 1
    restarted = call(*switched, code=9)["rows"]
    assert len(restarted) == len(first) == 4
    assert not {row["fingerprint"] for row in restarted} & {row["fingerprint"] for row in first}
    assert "--resume to them" in call("bench", "--resume", "--host", "local", code=2)["error"]


def test_a_finished_folder_is_no_verdict_about_other_servers(
    call: Call, servers: tuple[Stub, Stub], tmp_path: Path
) -> None:
    more = ("--control-token", "env:TREE_TOKEN", "--pairs", "1")
    call(*by_url(servers, tmp_path, *more), code=9)
    with running_stub(servers[0].script) as linear, running_stub(servers[1].script) as tree:
        next_night = by_url((linear, tree), tmp_path, *more)
        assert "holds the report of a finished sweep" in call(*next_night, code=2)["error"]
        assert not linear.seen
        call(*next_night, "--resume", code=9)
        assert tree.widths == [15, 32]


def test_looping_prompts_are_left_out_and_a_reference_judges_ties(
    call: Call, servers: tuple[Stub, Stub], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers[1].script.salt = "parts at once"
    servers[0].script.step_s = servers[1].script.step_s = 0.0
    more = ("--control-token", "env:TREE_TOKEN", "--pairs", "1")
    assert call(*by_url(servers, tmp_path, *more), code=8)["verdict"]["decision"] == "invalid"
    (tmp_path / "out" / "rows.jsonl").unlink()
    more = (*more, "--resume")
    with running_stub(Script(gap=0.0)) as reference:
        judged = call(*by_url(servers, tmp_path, *more, "--reference", reference.url), code=9)
    assert {row["ties"] for row in judged["rows"] if row["arm"] == "tree"} == {1}
    servers[0].script.fault = "loop"
    assert "repeats itself on every prompt" in call(*by_url(servers, tmp_path, *more), code=8)["error"]


def test_servers_that_cannot_be_the_arms_are_refused(call: Call, servers: tuple[Stub, Stub], tmp_path: Path) -> None:
    exchanged = call(*by_url((servers[1], servers[0]), tmp_path), code=2)
    assert "serves DDTREE, and DFLASH is needed" in exchanged["error"]
    assert "32 tree nodes and can't be told" in call(*by_url(servers, tmp_path), code=2)["error"]
    assert "max_live_load does not apply" in call(*by_url(servers, tmp_path), "--max-live-load", "1", code=2)["error"]
    one_each = [f"--tree-url={budget}={servers[1].url}" for budget in (15, 32)]
    many = call("bench", "--linear-url", servers[0].url, *one_each, *QUICK, code=2)
    assert "can't be told to have 15" in many["error"]
    twice = call("bench", "--linear-url", servers[0].url, *one_each[:1] * 2, *QUICK, code=2)
    assert "second address for 15" in twice["error"]
    lacking = call("bench", "--linear-url", servers[0].url, one_each[1], *QUICK, code=2)
    assert "add --tree-url 15=URL" in lacking["error"]
    assert "belong together" in call("bench", "--tree-url", servers[1].url, code=2)["error"]
    wrong = tmp_path / "token"
    wrong.write_text("another-token-123")
    refused = call(*by_url(servers, tmp_path, "--control-token", f"file:{wrong}"), "--pairs", "1", code=8)
    assert refused["verdict"]["decision"] == "invalid"


def test_a_ladder_of_loads_becomes_a_table_and_a_report(call: Call, servers: tuple[Stub, Stub], tmp_path: Path) -> None:
    prompts = ("--prompts", str(tmp_path / "prompts.txt"), "--max-tokens", "8", "--requests", "3")
    found = call("load", servers[0].url, *prompts, "--concurrency", "1,2", "--slo", "ttft=60")
    assert [level["level"]["label"] for level in found["levels"]] == ["1 at once", "2 at once"]
    assert {level["summary"]["goodput_share"] for level in found["levels"]} == {1.0}
    assert "Throughput against latency" in Path(found["run_report"]).read_text()
    opened = call("load", servers[0].url, *prompts, "--rate", "50", "--fixed", "--api", "chat", "--no-thinking")
    assert opened["levels"][0]["level"]["label"] == "50 requests/s fixed"
    assert servers[0].seen[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    for bad in (("--rate", "0"), ("--rate", "1", "--concurrency", "1"), ("--slo", "ttft"), ("--concurrency", "x")):
        call("load", servers[0].url, *bad, code=2)


def test_two_runs_are_compared_beside_results_of_sglangs_benchmark(call: Call, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        Bench(store).run(sweep(), "before")
        Bench(store).run(sweep(1.3), "after")
        Bench(store).run(None, "nothing")
    (tmp_path / "serving.jsonl").write_text(json.dumps(SERVING))
    found = call("report", "after", "--against", "before", "--import", str(tmp_path / "serving.jsonl"))
    assert {c["arm"] for c in found["changes"] if c["worse"]} == {"linear", "tree 15", "tree 64"}
    assert found["imported"][0]["tok_s"] == 256.0
    text = Path(found["files"][0]).read_text()
    assert "Against run before" in text
    assert "SGLang's own benchmark" in text.replace("&#39;", "'")
    assert Path(found["files"][0]) == tmp_path / ".run" / "reports" / "after" / "report.html"
    assert "measured no sweep" in call("report", "after", "--against", "nothing", code=2)["error"]
