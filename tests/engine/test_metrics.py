"""Counters and the trace of a running engine agree with what the scheduler reports."""

from __future__ import annotations

import json
from types import SimpleNamespace

from sglang_ddtree.metrics import Trace


def test_trace_and_counters_tell_the_same_story(dense, engine, tmp_path):
    file = tmp_path / "trace.jsonl"
    running = engine.start(dense, "DDTREE", 15, env={"SGLANG_DDTREE_TRACE": str(file)})
    requests = [running.add(prompt, 32) for prompt in dense.prompts[:3]]
    running.run(requests)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert set(lines[0]) == {"rid", "step", "nodes", "path", "accepted", "chain_accepted", "margins"}
    snapshot = running.worker.metrics.snapshot()
    assert snapshot["ddtree_steps"] == len(lines)
    assert snapshot["ddtree_accept_length"] == sum(line["accepted"] for line in lines) / len(lines)
    assert snapshot["ddtree_accept_length_chain"] == sum(line["chain_accepted"] for line in lines) / len(lines)
    assert sum(snapshot["ddtree_depth_hits"].values()) == len(lines)
    assert list(snapshot["ddtree_step_seconds"]) == ["draft", "tree", "verify", "walk", "commit"]
    assert min(snapshot["ddtree_step_seconds"].values()) > 0
    for request in requests:
        mine = [line for line in lines if line["rid"] == request.rid]
        assert [line["step"] for line in mine] == list(range(request.spec_verify_ct))
        # every token but prefill's comes from a step; the last step may overshoot the request's length
        assert sum(line["accepted"] for line in mine) >= len(request.output_ids[: request.finished_len]) - 1
    for line in lines:
        assert line["nodes"] == 15
        assert line["path"][0] == 0
        assert len(line["path"]) == line["accepted"] == len(line["margins"])
        assert 1 <= line["chain_accepted"] <= line["accepted"]
        assert all(margin >= 0 for margin in line["margins"])


def test_another_rank_of_the_same_server_tells_nothing(dense, engine, tmp_path, monkeypatch):
    from sglang_ddtree import worker

    monkeypatch.setattr(worker, "get_tp_group", lambda: SimpleNamespace(rank_in_group=1))
    file = tmp_path / "trace.jsonl"
    running = engine.start(dense, "DDTREE", 15, env={"SGLANG_DDTREE_TRACE": str(file)})
    running.run([running.add(dense.prompts[0], 8)])
    assert running.worker.metrics.steps > 0
    assert not file.exists()


def test_trace_is_bounded(tmp_path):
    trace = Trace(str(tmp_path / "t.jsonl"), limit=200)
    for step in range(50):
        trace._line({"rid": "r", "step": step})
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["trace_full"]
    assert sum(len(line) + 1 for line in lines[:-1]) <= 200
    assert trace.file is None
