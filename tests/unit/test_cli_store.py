"""Commands that read and write the store, against a store filled through its own API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.graph.todolist import TodoList
from tests.tui.fixtures import EARLIER_ID, RUN_ID, Stage, stage

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Stage]:
    """A deployment in the middle of its benchmark, and one of the day before that kept linear."""
    made = stage(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def call(filled: Stage, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line with --json, checks its exit code, and returns its document."""

    def called(*argv: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main.run([*argv, "--json", "--hosts", str(filled.hosts_file)]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (document["ok"], document["exit_code"]) == (code in (0, 9), code)
        return document

    return called


@pytest.fixture
def lines(filled: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command line for people, and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def called(*argv: str) -> str:
        capsys.readouterr()
        assert main.run([*argv, "--hosts", str(filled.hosts_file)]) == 0
        return capsys.readouterr().out

    return called


def test_status_shows_the_newest_run_or_the_one_asked_for(call: Call, lines: Callable[..., str]) -> None:
    newest = call("status")
    assert newest["run"]["id"] == RUN_ID
    assert next(task["state"] for task in newest["tasks"] if task["key"] == "bench-budgets") == "in_progress"
    earlier = call("status", EARLIER_ID)
    assert (earlier["run"]["state"], earlier["run"]["exit_code"]) == ("completed", 9)
    text = lines("status", RUN_ID[:-2])
    assert text.startswith(f"{RUN_ID}  deploy-ddtree on pro6000: running")
    assert "\x1b" not in text


def test_history_is_newest_first_and_can_be_narrowed(call: Call) -> None:
    assert [run["id"] for run in call("history")["runs"]] == [RUN_ID, EARLIER_ID]
    assert [run["id"] for run in call("history", "--limit", "1")["runs"]] == [RUN_ID]
    assert call("history", "--host", "local")["runs"] == []
    assert call("history")["runs"][0]["started_by"] == "ada@workbench"


def test_explain_says_what_a_task_waits_for(call: Call) -> None:
    found = call("explain", "switch-service")
    assert found["verdict"] == "waits"
    assert "it waits for arm-deadman" in [reason["text"].split(",")[0] for reason in found["reasons"]]
    assert "no-such-task" in call("explain", "no-such-task", code=2)["error"]


def test_logs_of_a_run_and_of_a_task(call: Call, lines: Callable[..., str]) -> None:
    every = call("logs", RUN_ID)
    assert every["events"][0]["kind"] == "run.created"
    of_task = call("logs", RUN_ID, "bench-budgets")["events"]
    assert {event["task"] for event in of_task} == {"bench-budgets"}
    assert "pair 7 of 12" in lines("logs", RUN_ID, "bench-budgets")


def test_following_ends_with_the_run(call: Call) -> None:
    followed = call("logs", EARLIER_ID, "-f")["events"]
    assert followed[-1]["kind"] == "run.finished"


def test_export_writes_a_folder_and_never_into_a_full_one(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "ticket"
    written = call("export", EARLIER_ID, str(target))["files"]
    assert all(Path(name).is_file() for name in written)
    assert json.loads((target / "run.json").read_text())["id"] == EARLIER_ID
    assert "not an empty folder" in call("export", EARLIER_ID, str(target), code=2)["error"]


def test_export_names_kept_files_that_lie_on_another_machine(
    call: Call, lines: Callable[..., str], filled: Stage, tmp_path: Path
) -> None:
    kept = filled.store.artifacts.add(EARLIER_ID, "bench-budgets", "bench.json", b"a sweep")
    kept.path.unlink()  # a shared store knows it, and it lies beside the program that measured
    assert call("export", EARLIER_ID, str(tmp_path / "one"))["missing"] == ["bench-budgets/bench.json"]
    said = lines("export", EARLIER_ID, str(tmp_path / "two"))
    assert "1 kept files are not on this machine: bench-budgets/bench.json" in " ".join(said.split())
    assert call("export", RUN_ID, str(tmp_path / "three"))["missing"] == []


def test_lock_names_the_holder_and_is_stolen_only_with_consent(call: Call, filled: Stage) -> None:
    assert call("lock", "status", "--host", "pro6000")["run_id"] == RUN_ID
    assert "add --yes" in call("lock", "steal", "--host", "pro6000", "--reason", "dead", code=2)["error"]
    call("lock", "steal", "--host", "pro6000", "--reason", "its machine burnt", "--yes")
    assert call("lock", "status", "--host", "pro6000")["owner"] is None
    assert any("burnt" in json.dumps(dict(event.data)) for event in filled.store.events.latest(5))


def test_notes_are_kept_with_their_author(call: Call) -> None:
    kept = call("note", "add", "Keep linear on old drivers", "--kind", "decision", "--task", "bench-budgets")
    listed = call("note", "list")["notes"]
    assert (listed[-1]["id"], listed[-1]["kind"], listed[-1]["task"]) == (kept["id"], "decision", "bench-budgets")
    assert listed[-1]["author"]


def test_a_todo_from_its_first_to_its_last_day(call: Call) -> None:
    first = call("todo", "add", "Ask for a window", "--priority", "high")["todos"][0]
    second = call("todo", "add", "Tell the users", "--after", first["id"])["todos"][0]
    ready = [item["id"] for item in call("todo", "ready")["todos"]]
    assert first["id"] in ready
    assert second["id"] not in ready
    assert "waits for" in call("todo", "claim", second["id"], code=2)["error"]
    assert call("todo", "claim", first["id"], "--owner", "ada")["todos"][0]["owner"] == "ada"
    assert "ada" in call("todo", "claim", first["id"], "--owner", "bob", code=6)["error"]
    assert call("todo", "set", first["id"], "completed")["todos"][0]["status"] == "completed"
    assert second["id"] not in [item["id"] for item in call("todo", "rm", second["id"])["todos"]]


def test_next_claims_the_most_urgent(call: Call) -> None:
    urgent = call("todo", "add", "The house burns", "--priority", "high")["todos"][0]
    claimed = call("todo", "next", "--owner", "ada")["todos"][0]
    assert claimed["priority"] == "high"
    assert claimed["status"] == "in_progress"
    others = {call("todo", "next", "--owner", "ada")["todos"][0]["id"] for _ in range(2)}
    assert claimed["id"] not in others
    assert urgent["id"] in {claimed["id"], *others}


def test_a_task_is_never_done_by_hand(call: Call) -> None:
    bound = f"{RUN_ID}:switch-service"
    assert "by hand" in call("todo", "set", bound, "completed", code=2)["error"]
    assert "cannot be removed" in call("todo", "rm", bound, code=2)["error"]
    assert call("todo", "set", bound, "cancelled")["todos"][0]["state"] == "skipped"


def test_todos_round_trip_and_a_torn_document_changes_nothing(call: Call, filled: Stage, tmp_path: Path) -> None:
    call("todo", "export", str(tmp_path / "todos.json"))
    before = TodoList(filled.store).export()
    assert json.loads((tmp_path / "todos.json").read_text()) == json.loads(before)
    call("todo", "import", str(tmp_path / "todos.json"))
    assert TodoList(filled.store).export() == before
    (tmp_path / "torn.json").write_text(before[:-20])
    assert "nothing was imported" in call("todo", "import", str(tmp_path / "torn.json"), code=2)["error"]
    assert "cannot be read" in call("todo", "import", str(tmp_path / "missing.json"), code=2)["error"]
    assert TodoList(filled.store).export() == before


def test_markup_and_control_characters_reach_no_terminal(lines: Callable[..., str]) -> None:
    lines("todo", "add", "[bold]x[/bold] \x1b[31mred\x1b[0m \u202edesrever")
    text = lines("todo", "list")
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_cancelling_what_has_ended_is_refused(call: Call, filled: Stage) -> None:
    assert "nothing to cancel" in call("cancel", EARLIER_ID, code=2)["error"]
    call("cancel", RUN_ID, "--reason", "wrong host")
    assert filled.store.runs.get(RUN_ID).cancel_reason == "wrong host"


def test_the_store_can_be_named_by_option_or_environment(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("history", "--state", f"sqlite:///{tmp_path / 'other.db'}")["runs"] == []
    monkeypatch.setenv("ORCHESTRATE_STATE", f"sqlite:///{tmp_path / 'third.db'}")
    assert call("history")["runs"] == []
