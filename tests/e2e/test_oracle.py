"""`bench --oracle` on the story's host: real models in the service's own environment, before anything is deployed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.e2e.conftest import Story

SIZE = ("--budgets", "15,32", "--max-tokens", "24")


def prompts(folder: Path, *texts: str) -> str:
    path = folder / f"prompts-{len(texts)}.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return str(path)


def test_the_oracle_answers_and_leaves_a_baseline(story: Story, tmp_path: Path) -> None:
    texts = ("def binary_search(values, wanted):\n", "import os\nimport sys\n\n\nclass ConfigReader:\n")
    run = story.orchestrate("bench", "--oracle", "--yes", "--prompts", prompts(tmp_path, *texts), *SIZE)
    assert run.code in (0, 9), run.stderr[-2000:]
    document = run.document
    assert [row["nodes"] for row in document["rows"]] == [0, 15, 32]
    assert document["rows"][2]["tokens_per_step"] >= document["rows"][1]["tokens_per_step"] > 1
    assert document["verdict"]["decision"] in ("worth measuring", "keep linear", "inconclusive")
    assert (run.code == 0) == (document["verdict"]["decision"] == "worth measuring")
    assert document["oracle"]["prompts"] == 2
    assert "2/2 prompts" in run.stderr
    kept = json.loads(Path(document["oracle"]["baseline"]).read_text())
    assert kept["format"] == "ddtree-baseline"
    assert Path(document["oracle"]["baseline"]).parent == story.home / "baselines"
    shutil.rmtree(story.home / "baselines")  # later runs of the story reuse what was proven with the shipped ones
    tools = story.environment().parents[1] / "ddtree" / "tools"
    assert not list(tools.glob("oracle-*"))


def test_a_prompt_longer_than_the_context_is_one_sentence(story: Story, tmp_path: Path) -> None:
    path = prompts(tmp_path, "word " * 6000)
    run = story.orchestrate("bench", "--oracle", "--yes", "--prompts", path, *SIZE)
    assert run.code == 2, run.stderr[-2000:]
    error = run.document["error"]
    assert "Prompt 'p0' has" in error
    assert "passes the model's context of 4096" in error
    assert "\n" not in error
