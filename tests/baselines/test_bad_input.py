"""Every bad input is one sentence and exit code 2; foreign formats are imported or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from baselines.__main__ import main
from baselines.baseline import load_baseline
from baselines.hashing import model_hash, tokenizer_hash
from baselines.imports import import_baseline
from baselines.prompts import load_prompts
from pairs import MODELS
from test_parity import make

TARGET, DRAFT = MODELS / "tiny-dense" / "target", MODELS / "tiny-dense" / "draft"


def refused(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must exit 2; returns its one sentence."""
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format": "ddtree-baseline", "version": 1, "prompts": [{"id"', "cut off or damaged at line 1"),
        ('{"something": "else"}', "no baseline of this tool"),
        ("[1, 2]", "no baseline of this tool"),
        ('{"format": "ddtree-baseline", "version": 7}', "version 7"),
        ('{"format": "ddtree-baseline", "version": 1, "target": {}}', "is damaged"),
        ("\x00\xff", "cut off or damaged"),
    ],
)
def test_truncated_and_foreign_baselines(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.json").write_text(content, encoding="latin-1" if "\xff" not in content else "utf-8")
    assert words in refused(["show", tmp_path / "b.json"], capsys)


def test_missing_and_empty_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused(["show", tmp_path / "none.json"], capsys)
    empty = make()
    empty.prompts = []
    empty.save(tmp_path / "b.json")
    assert "holds no prompts" in refused(["show", tmp_path / "b.json"], capsys)


def test_a_baseline_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make().save(tmp_path / "b.json")
    (tmp_path / "counts.json").write_text('{"p1": 10}')
    command = ["check", tmp_path / "b.json", "--mode", "chain", "--counts", tmp_path / "counts.json"]
    assert "made with another target (sha256 abababababab" in refused([*command, "--target", TARGET], capsys)
    assert "made with another draft" in refused([*command, "--draft", DRAFT], capsys)
    assert "no mode '99'" in refused([*command[:3], "99", *command[4:]], capsys)
    (tmp_path / "counts.json").write_text('{"other": 10}')
    assert "no prompt 'other'" in refused(command, capsys)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no steps"),
        ('{"trace_full": true}\n', "holds no steps"),
        ('{"rid": "a", "step": 0}\n{"rid": 1}\n', "line 1 is no trace"),
        ('{"rid"\n{"rid": "p1", "step": 0, "accepted": 3}\n', "line 1 is not JSON"),
    ],
)
def test_bad_traces(content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make().save(tmp_path / "b.json")
    (tmp_path / "t.jsonl").write_text(content)
    assert words in refused(["check", tmp_path / "b.json", "--mode", "16", "--trace", tmp_path / "t.jsonl"], capsys)


def oracle(*more: object) -> list[object]:
    return ["oracle", "--target", TARGET, "--draft", DRAFT, "--new-tokens", "8", "--budgets", "15", *more]


def test_bad_prompt_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "empty.jsonl": ("", "holds no prompts"),
        "blank.txt": ("\n\n", "holds no prompts"),
        "broken.jsonl": ('{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
        "keyless.jsonl": ('{"answer": "a"}\n', "record 1 has no prompt"),
        "double.jsonl": ('{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}\n', "Two prompts are called 'x'"),
        "long.txt": ("word " * 6000, "passes the model's context of 4096"),
    }
    for name, (content, words) in cases.items():
        (tmp_path / name).write_text(content)
        assert words in refused(oracle("--prompts", tmp_path / name), capsys), name
    assert "name a file of prompts or one of chat, code" in refused(oracle("--prompts", "nothing"), capsys)


def test_bad_models_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no *.safetensors" in refused(["oracle", "--target", tmp_path, "--draft", DRAFT], capsys)
    assert "does not describe a DFlash draft" in refused(["oracle", "--target", TARGET, "--draft", TARGET], capsys)
    assert "whole numbers from 1 up" in refused(oracle("--budgets", "16,x"), capsys)


def test_the_command_writes_a_baseline_that_it_reads_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b.json"
    assert main([str(a) for a in oracle("--prompts", "code", "--limit", "1", "--out", out, "--json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["all"]["prompts"] == 1
    baseline = load_baseline(out)
    assert baseline.target["sha256"] == model_hash(TARGET)
    baseline.require_models(model_hash(TARGET), model_hash(DRAFT), tokenizer_hash(TARGET))
    assert not out.with_name("b.json.partial").exists()
    assert main(["show", str(out)]) == 0
    assert "tokens per step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "[[4, 3, 5], [2, 2]]"),
        (
            "b.json",
            '{"prompts": [{"id": "x", "acceptance_lengths": [4, 3, 5]}, {"id": "y", "acceptance_lengths": [2, 2]}]}',
        ),
        ("c.json", '{"x": [4, 3, 5], "y": [2, 2]}'),
        ("d.jsonl", '{"id": 0, "accept_lengths": [4, 3, 5]}\n{"id": 1, "accept_lengths": [2, 2]}\n'),
        ("e.csv", 'id,acceptance_lengths\nx,"[4, 3, 5]"\ny,"2 2"\n'),
        ("f.csv", "prompt_id,step,accepted\nx,0,4\nx,1,3\nx,2,5\ny,0,2\ny,1,2\n"),
    ],
)
def test_acceptance_lists_of_others_are_imported(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    baseline = import_baseline(tmp_path / name, "64")
    assert [r.accept["64"] for r in baseline.prompts] == [[4, 3, 5], [2, 2]]
    assert baseline.budgets == [64]


def test_lists_for_several_modes_are_imported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"id": "x", "accept": {"dflash": [3], "ddtree_tb16": [4], "64": [5]}}]')
    assert import_baseline(tmp_path / "a.json").prompts[0].accept == {"chain": [3], "16": [4], "64": [5]}


def test_results_of_the_official_script_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def result(lengths: list[int]) -> SimpleNamespace:
        return SimpleNamespace(
            output_ids=torch.tensor([[7, 8, *range(sum(lengths))]]),
            num_input_tokens=2,
            num_output_tokens=sum(lengths),
            time_per_output_token=0.1,
            acceptance_lengths=lengths,
        )

    responses = [{"baseline": result([1] * 6), "dflash": result([2, 2, 2]), "ddtree_tb16": result([3, 3])}]
    torch.save({"responses": responses, "block_size": 16, "args": {"tree_budget": "16"}}, tmp_path / "r.pt")
    assert main(["import", str(tmp_path / "r.pt"), "--out", str(tmp_path / "b.json")]) == 0
    baseline = load_baseline(tmp_path / "b.json")
    assert baseline.prompts[0].accept == {"chain": [2, 2, 2], "16": [3, 3]}
    assert baseline.prompts[0].prompt_ids == [7, 8]
    (tmp_path / "bad.pt").write_bytes((tmp_path / "r.pt").read_bytes()[:200])
    assert "not a result of the DDTree script" in refused(
        ["import", tmp_path / "bad.pt", "--out", tmp_path / "x"], capsys
    )


def test_an_import_can_be_bound_to_its_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("[[4, 3, 5], [2, 2]]")
    command = ["import", str(tmp_path / "a.json"), "--out", str(tmp_path / "b.json"), "--mode", "64", "--json"]
    assert main([*command, "--target", str(TARGET), "--draft", str(DRAFT)]) == 0
    baseline = load_baseline(tmp_path / "b.json")
    assert (baseline.target["sha256"], baseline.draft["sha256"]) == (model_hash(TARGET), model_hash(DRAFT))
    assert json.loads(capsys.readouterr().out)["summary"]["all"]["tokens_per_step"] == {"64": 3.2}
    assert "holds no *.safetensors" in refused([*command, "--target", tmp_path], capsys)
    (tmp_path / "counts.json").write_text('{"prompt-1": 3}')
    check = ["check", tmp_path / "b.json", "--mode", "chain", "--counts", tmp_path / "counts.json"]
    assert "no mode 'chain'" in refused(check, capsys)


def test_the_identity_of_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identity", "--target", str(TARGET), "--draft", str(DRAFT), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == {"name": "tiny-dense/target", "sha256": model_hash(TARGET)}
    assert "holds no *.safetensors" in refused(["identity", "--target", tmp_path, "--draft", DRAFT], capsys)


def test_prompts_of_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a", "input_ids": [5, 6, 7]}\n')
    assert load_prompts(tmp_path / "p.jsonl")[0].encode(None) == [5, 6, 7]


def test_imports_that_hold_nothing_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {
        "a.json": "[]",
        "b.json": '[{"id": 1}]',
        "c.json": "[[0, 2]]",
        "d.json": "3",
        "e.csv": "x,y\n1,2\n",
        "f.json": '[{"id": 1, "accept": {"16": [3]}}, {"id": 2, "accept": {"64": [3]}}]',
        "g.jsonl": "{",
    }.items():
        (tmp_path / name).write_text(content)
        assert str(tmp_path / name) in refused(["import", tmp_path / name, "--out", tmp_path / "x"], capsys)
