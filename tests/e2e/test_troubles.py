"""What can go wrong on a host: one clear sentence, the right exit code, and a service that is as it was."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import QUICK, Story


def unit_file(story: Story) -> Path:
    return story.home / ".embedded" / "local" / "home" / ".orchestrate" / "services" / "sglang" / "unit.json"


def assert_linear_serves(story: Story) -> None:
    assert story.server_info()["speculative_algorithm"] == "DFLASH"
    assert story.generate()["meta_info"]["spec_verify_ct"] > 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run", "deploy-ddtree", "--host", "nowhere", "--yes"), "nowhere"),
        (("run", "deploy-dtree", "--yes"), "did you mean deploy-ddtree"),
        (("run", "deploy-ddtree", "--yes", "--only", "canry"), "did you mean canary"),
        (("run", "deploy-ddtree", "--yes", "--set", "budgets=0"), "budgets=0"),
        (("run", "deploy-ddtree", "--yes", "--set", "decide=adopt"), "--reason"),
        (("run", "deploy-ddtree"), "--yes"),
        (("rollback", "--to", "ddtree-000000000000", "--yes"), "ddtree-000000000000"),
    ],
)
def test_a_wrong_request_is_refused_with_exit_2(story: Story, arguments: tuple[str, ...], word: str) -> None:
    result = story.orchestrate(*arguments)
    assert result.code == 2, result.stderr
    assert word in result.document["error"]
    assert "Traceback" not in result.stderr


def test_a_side_port_that_is_taken_ends_the_run_before_any_change(story: Story) -> None:
    with socket.create_server(("127.0.0.1", story.port + 1)):
        result = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK)
    assert result.code == 1
    assert f"Port {story.port + 1}" in result.document["error"]
    assert_linear_serves(story)


def test_another_host_key_is_refused_with_exit_3(story: Story) -> None:
    known = story.home / ".embedded" / "local" / "known_hosts"
    assert known.exists()
    key = story.home / ".embedded" / "local" / "host_key"
    saved = key.read_bytes()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key) + ".other"], check=True)
    try:
        shutil.copy(str(key) + ".other", key)  # pins another key than the running server shows
        result = story.orchestrate("hosts", "check", "local")
    finally:
        key.write_bytes(saved)
    assert result.code == 3, result.stdout
    assert "key" in result.document["error"]
    assert story.orchestrate("hosts", "check", "local").code == 0


def test_a_plugin_that_does_not_load_is_noticed_and_rolled_back(story: Story) -> None:
    """The user's own SGLANG_PLUGINS leaves our plugin out, so the spawned scheduler does not know DDTREE."""
    unit = unit_file(story)
    saved = unit.read_text()
    changed = json.loads(saved)
    changed["env"]["SGLANG_PLUGINS"] = "none"
    unit.write_text(json.dumps(changed))
    try:
        result = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK)
        assert result.code == 4, result.stderr[-3000:]
        assert "DDTREE" in result.document["error"]
        assert "rolled back and verified" in result.document["error"]
        assert_linear_serves(story)
    finally:
        unit.write_text(saved)


@pytest.mark.parametrize("task", ["record-linear", "build-release", "canary"])
def test_ctrl_c_leaves_a_run_that_goes_on_where_it_stopped(story: Story, task: str) -> None:
    quick = (*QUICK, "--force", task)
    result = story.interrupt_at(task, "run", "deploy-ddtree", "--yes", *quick)
    assert result.code == 130, result.stderr[-2000:]
    assert_linear_serves(story)
    run_id = result.document["run_id"]
    assert story.orchestrate("status", run_id).document["run"]["state"] == "interrupted"
    resumed = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK, "--resume", run_id)
    assert resumed.code in (0, 9), resumed.stderr[-3000:]
    assert resumed.document["run_id"] == run_id
    assert_linear_serves(story)


def test_a_linear_service_that_does_not_run_is_named_with_what_to_do(story: Story) -> None:
    supervisor = unit_file(story).with_name("supervisor.py")
    subprocess.run(["python3", str(supervisor), "stop", str(supervisor.parent)], check=True, capture_output=True)
    result = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK)
    assert result.code == 1
    assert "not running" in result.document["error"]
    assert "hosts start local" in result.document["error"]
    assert story.orchestrate("hosts", "start", "local").code == 0
    assert_linear_serves(story)


def test_a_full_disk_during_the_clone_leaves_nothing_behind(story: Story, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(small)], check=True)
    inventory = story.home / "hosts.yaml"
    saved = inventory.read_text()
    try:
        inventory.write_text(saved + f"    root: {small}/ddtree\n")
        result = story.orchestrate("run", "deploy-ddtree", "--yes", *QUICK)
        assert result.code in (1, 4), result.stderr[-2000:]
        assert "space" in result.document["error"] or "room" in result.document["error"]
        assert not list((small / "ddtree" / "releases").glob("ddtree-*"))
    finally:
        inventory.write_text(saved)
        subprocess.run(["umount", str(small)], check=True)
    assert_linear_serves(story)


def test_a_store_from_a_newer_version_and_a_corrupt_one_are_refused(story: Story, tmp_path: Path) -> None:
    corrupt = tmp_path / "state.db"
    corrupt.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    result = story.orchestrate("run", "deploy-ddtree", "--yes", "--state", f"sqlite:///{corrupt}")
    assert result.code == 2
    assert "corrupt" in result.document["error"]
    assert list(tmp_path.glob("state.db.corrupt-*")), "the broken file is kept aside"


def test_clean_removes_every_trace(story: Story) -> None:
    result = story.orchestrate("hosts", "clean", "local", "--yes")
    assert result.code == 0, result.stderr
    assert not (story.home / ".embedded" / "local").exists()
