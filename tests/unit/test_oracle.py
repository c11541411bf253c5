"""What the oracle's figures mean, where it runs, and what `bench --oracle` refuses before it contacts a host."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bench.prompts import Prompt
from orchestrator.cli.oracle import print_oracle
from orchestrator.cli.output import Output
from orchestrator.errors import OrchestrateError
from tasks import baseline_files, host_tools, oracle, oracle_verdict
from tasks.inspecting.inspection import Inspection

DENSE = next(path for path in baseline_files.files(Path("/nonexistent")) if path.stem == "tiny-dense")


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DENSE.read_text())
    return found


def test_rows_are_the_baselines_own_rates() -> None:
    baseline = document()
    rows = oracle_verdict.rows(baseline, {})
    chosen, said = oracle_verdict.basis(baseline["prompts"])
    tokens = sum(sum(p["accept"]["64"]) for p in chosen)
    steps = sum(len(p["accept"]["64"]) for p in chosen)
    row = next(row for row in rows if row.nodes == 64)
    assert row.tokens_per_step == round(tokens / steps, 4)
    assert row.break_even == pytest.approx(row.tokens_per_step / rows[0].tokens_per_step, abs=1e-3)
    assert row.ci95[0] < row.break_even < row.ci95[1]
    assert row.width == 65
    assert [row.nodes for row in rows] == [0, *baseline["budgets"]]
    assert all(row.ratio is None for row in rows)
    assert f"{len(baseline['prompts'])} prompts" in said


def test_the_step_cost_decides() -> None:
    baseline = document()
    free = oracle_verdict.verdict(oracle_verdict.rows(baseline, {}), 0.02, "x")
    assert free["decision"] == "worth measuring"
    assert "not known before it is measured" in free["reason"]
    dear = dict.fromkeys(baseline["budgets"], 3.0)
    kept = oracle_verdict.verdict(oracle_verdict.rows(baseline, dear), 0.02, "x")
    assert kept["decision"] == "keep linear"
    assert kept["ratio"] < 1
    one = dict.fromkeys(baseline["budgets"], 3.0) | {32: 1.05}
    best = oracle_verdict.verdict(oracle_verdict.rows(baseline, one), 0.02, "x")
    assert (best["decision"], best["budget"]) == ("worth measuring", 32)
    rates = {row.nodes: row.break_even for row in oracle_verdict.rows(baseline, {})}
    even = oracle_verdict.verdict(oracle_verdict.rows(baseline, dear | {32: rates[32]}), 0.0, "x")
    assert even["decision"] == "inconclusive"


def test_looping_prompts_stand_aside_when_enough_others_are_there() -> None:
    prompts = [{"id": str(i), "distinct_6grams": 0.9 if i < 4 else 0.1} for i in range(8)]
    chosen, said = oracle_verdict.basis(prompts)
    assert [p["id"] for p in chosen] == ["0", "1", "2", "3"]
    assert "4 of 8 prompts" in said
    chosen, said = oracle_verdict.basis(prompts[1:])
    assert len(chosen) == 7
    assert "all 7 prompts" in said


def test_the_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    baseline = document()
    rows = oracle_verdict.rows(baseline, {nodes: 1.0 + nodes / 500 for nodes in baseline["budgets"]})
    verdict = oracle_verdict.verdict(rows, 0.02, "x")
    print_oracle(Output(), [row.to_json() for row in rows], {"basis": "x", "baseline": "b.json"}, verdict)
    lines = capsys.readouterr().out.splitlines()
    table = lines[: len(rows) + 1]
    assert table[0].split()[:2] == ["B", "T"]
    assert max(map(len, table)) <= 80
    assert table[1].split()[0] == "chain"
    assert len({len(line.split()) for line in table[1:]}) == 1


def seen(gpus: list[dict[str, Any]], weight_bytes: int = 54 << 30) -> Inspection:
    model = {"target": {"weight_bytes": weight_bytes}, "draft": {"weight_bytes": 0}}
    return Inspection("h", "host", None, None, model, {"gpu": {"gpus": gpus}})


def test_the_gpu_with_room_is_chosen() -> None:
    assert oracle.choose_device(seen([])) == "cpu"
    gpus = [{"index": 0, "free_bytes": 20 << 30}, {"index": 3, "free_bytes": 90 << 30}]
    assert oracle.choose_device(seen(gpus)) == "cuda:3"
    with pytest.raises(OrchestrateError, match=r"no GPU has 68 GiB free beside what runs .20 at most.*--device cpu"):
        oracle.choose_device(seen(gpus[:1]))


def test_the_archive_is_the_same_every_time_and_runs_by_itself(tmp_path: Path) -> None:
    first = host_tools.archive()
    host_tools.archive.cache_clear()
    assert host_tools.archive() == first
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert "baselines/__main__.py" in names
    (tmp_path / "b.zip").write_bytes(first)
    done = subprocess.run(
        [sys.executable, "-m", "baselines", "show", str(DENSE), "--json"],
        env={"PYTHONPATH": str(tmp_path / "b.zip")}, capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    assert json.loads(done.stdout)["summary"]["all"]["prompts"] == 8


def test_prompts_of_every_kind_reach_the_host_as_they_are() -> None:
    prompts = [
        Prompt("a", text="x"),
        Prompt("b", "chat", messages=({"role": "user", "content": "y"},)),
        Prompt("c", input_ids=(1, 2)),
    ]
    lines = [json.loads(line) for line in oracle.as_jsonl(prompts).splitlines()]
    assert lines == [
        {"id": "a", "category": "default", "text": "x"},
        {"id": "b", "category": "chat", "messages": [{"role": "user", "content": "y"}]},
        {"id": "c", "category": "default", "input_ids": [1, 2]},
    ]


def test_an_oracles_result_is_kept_as_a_baseline_of_its_pair(tmp_path: Path) -> None:
    path = oracle.keep(tmp_path, document())
    assert path == oracle.keep(tmp_path, document())
    assert baseline_files.files(tmp_path)[0] == path
    assert baseline_files.read(path).target == document()["target"]["sha256"]


def bench(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    (tmp_path / "hosts.yaml").write_text(
        "hosts:\n  local: {transport: embedded, engine: sglang-cpu, model: tiny-hybrid, service: {driver: process}}\n"
    )
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "bench",
        "--yes",
        "--hosts",
        str(tmp_path / "hosts.yaml"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(("name", "content", "words"), [
    ("empty.jsonl", "", "holds no prompt"),
    ("blank.txt", "\n\n", "holds no prompt"),
    ("broken.jsonl", '{"id": "a", "text": "b"}\n{"id"\n', "line 2 is not JSON"),
    ("double.jsonl", '{"id": "a", "text": "b"}\n{"id": "a", "text": "c"}\n', "uses the id 'a' twice"),
])  # fmt: skip
def test_bad_prompt_sets_end_before_the_host_is_contacted(name: str, content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    code, said = bench(tmp_path, "--oracle", "--prompts", str(tmp_path / name))
    assert code == 2
    assert words in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / ".embedded").exists()


def test_options_of_the_oracle_alone_are_refused_without_it(tmp_path: Path) -> None:
    code, said = bench(tmp_path, "--device", "cpu")
    assert code == 2
    assert "belongs to --oracle" in said


def test_prompts_of_a_sweep_that_cannot_be_read_end_it_before_the_host_is_contacted(tmp_path: Path) -> None:
    code, said = bench(tmp_path, "--prompts", str(tmp_path / "none.jsonl"))
    assert code == 2
    assert "can't be read as a prompt set" in said
    assert not (tmp_path / ".embedded").exists()
