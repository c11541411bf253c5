"""`orchestrate inspect --path`: no inventory, no run kept, one sentence for a folder that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.inspect.conftest import make_package

REPOSITORY = Path(__file__).parents[2]


def inspect(folder: Path, here: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "inspect", "--path", str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_a_folder_is_judged_without_an_inventory(tmp_path: Path) -> None:
    make_package(tmp_path / "wheel", "0.5.23")
    here = tmp_path / "here"
    here.mkdir()
    done = inspect(tmp_path / "wheel", here, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"], document["sglang"]["version"]) == (0, True, "0.5.23")
    assert document["sglang"]["package_path"] == str(tmp_path / "wheel" / "sglang")
    assert document["recommendation"]["decision"] == "judge-only"
    assert {"risks", "recommendation", "sglang", "vllm", "model"} <= set(document)
    assert list(here.iterdir()) == []


def test_a_folder_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    done = inspect(tmp_path / "nowhere", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert "is no folder" in line


def test_an_inspection_loads_nothing_of_a_benchmark() -> None:
    code = "import sys, tasks.plans.inspect; sys.exit(bool({'numpy', 'aiohttp', 'matplotlib'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
