"""The main job, told in order on one embedded host: measured first, adopted by word, rolled back, byte for byte."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import httpx

from tests.e2e.conftest import QUICK, Story

KEEP: dict[str, Any] = {}
ADOPT = ("--set", "decide=adopt", "--reason", "the story adopts at 15 nodes", "--set", "nodes=15")


def tree_sha(story: Story) -> str:
    """Every path, mode, link and byte of the service's environment, hashed by tar and sha256sum."""
    command = 'tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$1" -cf - . | sha256sum'
    done = subprocess.run(["sh", "-c", command, "sh", story.environment()], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def test_a_first_run_measures_and_ends_with_a_verdict(story: Story) -> None:
    started = story.orchestrate("hosts", "start", "local")
    assert started.code == 0, started.stderr[-2000:]
    KEEP["environment"] = tree_sha(story)
    assert story.server_info()["speculative_algorithm"] == "DFLASH"

    run = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK)
    assert run.code in (0, 9), run.stderr[-3000:]
    document = run.document
    assert document["ok"]
    assert document["exit_code"] == run.code
    tasks = run.tasks()
    assert all(task["state"] in ("completed", "skipped") for task in tasks.values()), tasks
    assert all(task["evidence"]["sha256"] for task in tasks.values() if task["state"] == "completed")
    verdict = document["verdict"]
    assert verdict["decision"] in ("adopt", "keep linear", "inconclusive")
    assert verdict["n"] >= 1
    assert verdict["ratio"] > 0
    compared = tasks["compare"]["evidence"]["output"]
    assert "8 of 8 greedy outputs equal" in compared
    assert "steps of 8 prompts as in the offline baseline tiny-hybrid, linear's" in compared
    assert "near-tie" not in compared, "in float32 nothing differs at all"
    KEEP["run"] = document["run_id"]


def test_the_run_leaves_its_document_and_a_true_roadmap(story: Story) -> None:
    last = json.loads((story.home / ".run" / "last.json").read_text())
    assert last["run_id"] == KEEP["run"]
    checked = story.orchestrate("roadmap", "--check")
    assert checked.code == 0, checked.stderr
    text = (story.home / "roadmap" / "sglang-ddtree-roadmap.md").read_text()
    assert KEEP["run"] in text
    assert "create_worker" in text or "DFlashWorkerV2" in text  # the upstream functions that the plugin overrides
    edited = text.replace("## Budgets", "## Budgets (edited)")
    (story.home / "roadmap" / "sglang-ddtree-roadmap.md").write_text(edited)
    assert story.orchestrate("roadmap", "--check").code == 1
    assert story.orchestrate("roadmap").code == 0
    assert story.orchestrate("roadmap", "--check").code == 0


def test_the_live_service_completes_for_a_plain_openai_client(story: Story) -> None:
    body = {"model": "default", "prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{story.url}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_a_second_run_reuses_what_holds_and_says_why(story: Story) -> None:
    """An override at 15 nodes cuts over; what was proven before is not proven again."""
    run = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK, *ADOPT)
    assert run.code == 0, run.stderr[-3000:]
    tasks = run.tasks()
    for key in ("record-linear", "build-release", "compare", "canary", "smoke", "benchmark"):
        assert "reused from run" in tasks[key]["reason"], (key, tasks[key]["reason"])
    assert tasks["cutover"]["state"] == "completed"
    assert run.document["verdict"]["by"] == "override"
    info = story.server_info()
    assert info["speculative_algorithm"] == "DDTREE"
    assert info["speculative_num_draft_tokens"] == 16
    assert story.generate()["meta_info"]["spec_verify_ct"] > 0


def test_releases_name_the_current_and_the_known_good_one(story: Story) -> None:
    releases = story.orchestrate("releases").document["releases"]
    current = [one for one in releases if one["current"]]
    linear = [one for one in releases if one["algorithm"] == "DFLASH" and one["known_good"]]
    assert [one["algorithm"] for one in current] == ["DDTREE"]
    assert len(linear) == 1
    assert linear[0]["evidence"]["tok_s"] > 0
    status = story.orchestrate("status", "--host", "local").document
    assert status["algorithm"] == "DDTREE"
    assert status["nodes"] == 15
    assert status["drift"] == []


def test_rollback_brings_the_linear_service_back_byte_for_byte(story: Story) -> None:
    back = story.orchestrate("rollback", "--yes")
    assert back.code == 0, back.stderr[-3000:]
    assert back.document["verified"] is True
    assert back.document["from"].startswith("ddtree-")
    assert back.document["to"].startswith("found-")
    assert story.server_info()["speculative_algorithm"] == "DFLASH"
    assert story.generate()["meta_info"]["spec_verify_ct"] > 0
    assert tree_sha(story) == KEEP["environment"]
