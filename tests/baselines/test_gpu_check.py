"""The check of real servers, with a stand-in for SGLang that answers from the baseline, right or with one token lost."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from baselines import gpu_check

STAND_IN = '''
"""Takes SGLang's arguments and answers what the shipped baseline says; LOSE takes one token from the first tree step."""
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

def value(name):
    return sys.argv[sys.argv.index(name) + 1]

tree = value("--speculative-algorithm") == "DDTREE"
nodes = int(value("--speculative-num-draft-tokens")) - 1 if tree else 0
prompts = {p["id"]: p for p in json.load(open(os.environ["STAND_IN_BASELINE"]))["prompts"]}

def steps(prompt, tokens):
    anchors, anchor, found = prompt["anchors"], 0, []
    while anchor + 1 < tokens:
        entered = anchors["entered"][anchor]
        found.append(1 + sum(n <= nodes for n in entered) if tree else anchors["chain"][anchor])
        anchor += found[-1]
    return found

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens, prompt = body["sampling_params"]["max_new_tokens"], prompts[body["rid"]]
        assert body["input_ids"] == prompt["prompt_ids"]
        taken = steps(prompt, tokens)
        if tree:
            with open(os.environ["SGLANG_DDTREE_TRACE"], "a") as trace:
                for number, accepted in enumerate(taken):
                    lost = "LOSE" in os.environ and number == 0 and accepted > 1
                    record = {"rid": body["rid"], "step": number, "accepted": accepted - lost}
                    trace.write(json.dumps(record) + "\\n")
        self.answer({"output_ids": prompt["greedy_ids"][:tokens], "meta_info": {"spec_verify_ct": len(taken)}})

    def answer(self, document):
        text = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

HTTPServer(("127.0.0.1", int(value("--port"))), Handler).serve_forever()
'''


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "path" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ("the plug-in",))
    monkeypatch.setenv("STAND_IN_BASELINE", str(gpu_check.SHIPPED / "tiny-dense.json"))
    return tmp_path


def free_port() -> int:
    """One that is free, as is the one that a second server takes."""
    for first in range(21300, 29900, 2 * gpu_check.PORTS_APART):
        try:
            for port in (first, first + gpu_check.PORTS_APART):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


def arguments(folder: Path, *more: str) -> list[str]:
    fixed = ["--pairs", "tiny-dense", "--modes", "chain,15", "--new-tokens", "24", "--port", str(free_port())]
    return [*fixed, "--json", str(folder / "out.json"), *more]


def test_right_servers_pass_and_leave_their_figures(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(arguments(stand_in)) == 0
    document = json.loads((stand_in / "out.json").read_text())
    assert [row["mode"] for row in document["rows"]] == ["chain", "15"]
    assert all(row["prompts"] == row["same_text"] == 8 and row["steps"] > 40 for row in document["rows"])
    assert all(row["engine_tokens_per_step"] == row["baseline_tokens_per_step"] > 1 for row in document["rows"])
    assert document["bound"] == 0.25
    assert len(document["tree_hash"]) == 40
    assert "8 prompts (8 same text)" in capsys.readouterr().out


def test_a_lost_token_is_listed_with_its_margins_and_fails(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOSE", "1")
    assert gpu_check.main(arguments(stand_in, "--modes", "15", "--bound", "0.001")) == 1
    said = capsys.readouterr().out
    assert "lost node at depth" in said
    assert "(target margin " in said
    row = json.loads((stand_in / "out.json").read_text())["rows"][0]
    assert row["faults"] > 0
    assert row["ok"] is False


def test_a_server_that_does_not_start_and_a_foreign_baseline_are_failures(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stand_in / "path" / "sglang" / "launch_server.py").write_text("raise SystemExit('no such backend')")
    assert gpu_check.main(arguments(stand_in, "--modes", "chain")) == 1
    assert "did not start: no such backend" in capsys.readouterr().out
    foreign = json.loads((gpu_check.SHIPPED / "tiny-dense.json").read_text())
    foreign["target"]["sha256"] = "0" * 64
    (stand_in / "tiny-dense.json").write_text(json.dumps(foreign))
    assert gpu_check.main(arguments(stand_in, "--baselines", str(stand_in))) == 2
    assert "made with another target" in capsys.readouterr().err
