"""The host's own script, run as the host runs it: on full disks, twice, and against a disarm at the same moment."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.release.store import LINK
from orchestrator.release.systemd_trigger import SystemdTrigger
from orchestrator.remote import scripts
from orchestrator.remote.scripts import deadman

SCRIPT = Path(scripts.__file__).with_name("deadman.py")


def arm(folder: Path, **plan: Any) -> None:
    folder.mkdir(exist_ok=True)
    document = {"token": "t1", "restores": "found-0", "seconds": 60, "files": {}, "links": {}, "commands": []}
    (folder / "armed.json").write_text(json.dumps({**document, "boot_commands": [], **plan}))


def call(*words: str | Path, limit: int | None = None) -> dict[str, Any]:
    """Run a verb; `limit` caps the size of any file that it may write, as a full disk does."""
    prefix = ["sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh"] if limit is not None else []
    done = subprocess.run(
        [*prefix, sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def test_firing_restores_files_links_and_runs_commands(tmp_path: Path) -> None:
    kept, gone, link = tmp_path / "kept", tmp_path / "gone", tmp_path / "link"
    kept.write_text("new")
    gone.write_text("new")
    link.symlink_to("new")
    deep = tmp_path / "unit.d" / "drop-in.conf"
    arm(
        tmp_path / "d",
        files={str(kept): "old", str(gone): None, str(deep): "again"},
        links={str(link): "old"},
        commands=[["touch", str(tmp_path / "ran")]],
    )
    answer = call("fire", tmp_path / "d", "t1")
    assert (answer["state"], answer["restores"]) == ("fired", "found-0")
    assert kept.read_text() == "old"
    assert not gone.exists()
    assert deep.read_text() == "again"
    assert link.readlink() == Path("old")
    assert (tmp_path / "ran").exists()
    assert call("status", tmp_path / "d")["state"] == "fired"


def test_a_step_that_fails_is_said_and_the_others_are_done(tmp_path: Path) -> None:
    arm(tmp_path, commands=[["false"], ["touch", str(tmp_path / "ran")]])
    answer = call("fire", tmp_path)
    assert answer["state"] == "failed"
    assert [step["ok"] for step in answer["steps"]] == [False, True]
    assert (tmp_path / "ran").exists()


def test_only_the_right_token_disarms_and_firing_after_that_does_nothing(tmp_path: Path) -> None:
    arm(tmp_path, commands=[["touch", str(tmp_path / "ran")]])
    assert call("disarm", tmp_path, "other")["state"] == "armed"
    assert call("disarm", tmp_path, "t1")["state"] == "disarmed"
    assert call("boot", tmp_path)["state"] == "disarmed"
    assert not (tmp_path / "ran").exists()


def test_boot_uses_its_own_commands(tmp_path: Path) -> None:
    arm(tmp_path, commands=[["false"]], boot_commands=[["touch", str(tmp_path / "booted")]])
    assert call("boot", tmp_path)["state"] == "fired"
    assert (tmp_path / "booted").exists()


def test_without_room_for_a_record_it_still_fires_and_says_so(tmp_path: Path) -> None:
    arm(tmp_path, commands=[["touch", str(tmp_path / "ran")]])
    (tmp_path / "lock").touch()
    assert call("fire", tmp_path, limit=0)["state"] == "fired"
    assert (tmp_path / "ran").exists()
    assert not (tmp_path / "armed.json").exists()
    assert call("status", tmp_path)["state"] == "fired"


def test_without_room_a_disarm_fails_and_stays_armed(tmp_path: Path) -> None:
    arm(tmp_path)
    (tmp_path / "lock").touch()
    with pytest.raises(subprocess.CalledProcessError):
        call("disarm", tmp_path, "t1", limit=0)
    assert call("status", tmp_path)["state"] == "armed"


def test_waiting_ends_with_firing_or_with_the_disarm(tmp_path: Path) -> None:
    arm(tmp_path / "a", seconds=0.3)
    assert call("wait", tmp_path / "a", "t1")["state"] == "fired"
    arm(tmp_path / "b", seconds=600)
    answers: list[str] = []
    waiter = threading.Thread(target=lambda: answers.append(call("wait", tmp_path / "b", "t1")["state"]))
    waiter.start()
    assert call("disarm", tmp_path / "b", "t1")["state"] == "disarmed"
    waiter.join(20)
    assert answers == ["disarmed"]


def test_firing_and_disarming_at_once_have_one_winner(tmp_path: Path) -> None:
    for turn in range(5):
        folder = tmp_path / str(turn)
        arm(folder, commands=[["touch", str(folder / "ran")]])
        answers: dict[str, str] = {}

        def ask(verb: str, folder: Path = folder, answers: dict[str, str] = answers) -> None:
            answers[verb] = call(verb, folder, "t1")["state"]

        both = [threading.Thread(target=ask, args=(verb,)) for verb in ("fire", "disarm")]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert len(set(answers.values())) == 1
        assert (folder / "ran").exists() == (answers["fire"] == "fired")


def test_host_and_operator_set_the_same_link_at_the_same_moment(tmp_path: Path) -> None:
    link, ended = tmp_path / "current", threading.Event()
    codes: list[int] = []

    def operate() -> None:
        set_link = ["sh", "-c", LINK, "sh", "new", str(link)]
        codes.extend(subprocess.run(set_link, check=False).returncode for _ in range(60))
        ended.set()

    operator = threading.Thread(target=operate)
    operator.start()
    while not ended.is_set():
        deadman.relink(str(link), "old")
    operator.join()
    assert codes == [0] * 60
    assert list(tmp_path.iterdir()) == [link]


def test_a_waiting_process_fires_no_switch_but_its_own(tmp_path: Path) -> None:
    arm(tmp_path / "d", seconds=0, commands=[["touch", str(tmp_path / "ran")]])
    assert call("wait", tmp_path / "d", "an earlier one")["state"] == "armed"
    assert call("fire", tmp_path / "d", "an earlier one")["state"] == "armed"
    assert not (tmp_path / "ran").exists()
    assert call("wait", tmp_path / "d", "t1")["state"] == "fired"


def test_the_timers_unit_names_its_switch_and_is_not_ended_half_way() -> None:
    """A firing holds a stand-in until the old release answers, which may take longer than any limit written there."""
    driver: Any = SimpleNamespace(scope=SimpleNamespace(wanted_by="multi-user.target"))
    nowhere: Any = None
    units = SystemdTrigger(nowhere, driver, "sglang.service").units("python3", "/d/deadman.py", "/d", 600, "t1")
    text = units["orchestrate-deadman.service"]
    assert "fire /d t1" in text.replace('"', "")
    assert "TimeoutStartSec=infinity" in text
