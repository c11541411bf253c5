"""Bad input through the command line: one sentence, exit code 2, and a store that is as it was."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.graph.model import Priority
from orchestrator.store.store import open_store
from orchestrator.store.todos import NewTodo
from tests.graph.conftest import Do, graph, runner, task

pytestmark = pytest.mark.usefixtures("at_home")


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inventory and a store with one to-do, as current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(
        "hosts:\n  local: {transport: embedded, engine: sglang-cpu, model: tiny-hybrid}\n"
    )
    assert main.run(["todo", "add", "stay"]) == 0


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON document; no traceback may reach anybody."""
    capsys.readouterr()
    code = main.run([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    document: dict[str, Any] = json.loads(out)
    return code, document


def contents(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [item["content"] for item in call(capsys, "todo", "list")[1]["todos"]]


BAD = [
    ('{"todos": [{"id": "a", "content": "x"', "not whole JSON"),
    ('[{"id": "a", "content": "x", "depends_on": ["a"]}]', "depends on itself"),
    (
        '[{"id": "a", "content": "x", "depends_on": ["b"]}, {"id": "b", "content": "y", "depends_on": ["a"]}]',
        "in a circle",
    ),
    ('[{"id": "a", "content": "x", "status": "done"}]', "status 'done'"),
    ('[{"id": "a", "content": "x"}, {"id": "a", "content": "y"}]', "appears twice"),
    (json.dumps([{"id": "a", "content": "x" * 2**20}]), "at most 20000"),
    ("[" * 100_000, "nested too deeply"),
    ('"todos"', "must be"),
]


@pytest.mark.parametrize(("text", "word"), BAD, ids=[word for _, word in BAD])
def test_a_bad_document_is_refused_whole(
    text: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "todos.json").write_text(text)
    code, document = call(capsys, "todo", "import", "todos.json")
    assert code == 2
    assert word in document["error"]
    assert "\n" not in document["error"]
    assert contents(capsys) == ["stay"]


def test_ten_thousand_to_dos_are_imported_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"id": f"t{n}", "content": f"item {n}", "depends_on": [f"t{n - 1}"] if n else []} for n in range(10_000)]
    (tmp_path / "todos.json").write_text(json.dumps({"todos": items}))
    code, document = call(capsys, "todo", "import", "todos.json")
    assert (code, document["imported"]) == (0, 10_000)
    assert len(contents(capsys)) == 10_001
    assert call(capsys, "todo", "import", "todos.json")[1]["imported"] == 10_000
    assert len(contents(capsys)) == 10_001


def test_control_characters_and_markup_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["todo", "add", "[bold red]x[/]\x1b[2J\x07\u202e"]) == 0
    assert main.run(["note", "add", "--kind", "risk", "\x1b]0;title\x07 [link=http://evil]here[/link]"]) == 0
    assert main.run(["todo", "list"]) == 0
    assert main.run(["note", "list"]) == 0
    out = capsys.readouterr().out
    assert "[bold red]x[/]" in out
    assert "[link=http://evil]here[/link]" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_a_pasted_token_is_kept_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = "hf_" + "a1b2" * 8
    assert call(capsys, "note", "add", "--kind", "risk", f"the token {token} is in the log")[0] == 0
    assert call(capsys, "todo", "add", f"revoke {token}")[0] == 0
    assert "revoke [secret]" in contents(capsys)
    assert [path.name for path in tmp_path.iterdir() if path.is_file() and token.encode() in path.read_bytes()] == []


def test_a_bound_task_is_not_declared_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        run = runner(store, graph(task("a", Do()))).run()
    code, document = call(capsys, "todo", "set", f"{run.run_id}:a", "completed")
    assert code == 2
    assert "only its own evidence completes it" in document["error"]


def test_a_clock_that_goes_backwards_leaves_no_negative_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter(range(2_000_000_000, 0, -3600))
    with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: float(next(times))) as store:
        run = runner(store, graph(task("a", Do()), task("b", Do(), "a"))).run()
        assert run.exit_code == 0
    shown = call(capsys, "status", run.run_id)[1]["tasks"]
    assert all(item["finished_at"] >= item["started_at"] and item["seconds"] >= 0 for item in shown)
    seqs = [event["seq"] for event in call(capsys, "logs", run.run_id)[1]["events"]]
    assert seqs == sorted(seqs)


def test_a_full_disk_is_named_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.store.sqlite import SqliteDatabase

    connect = SqliteDatabase._open

    def small(self: SqliteDatabase) -> Any:
        connection = connect(self)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    items = [{"id": f"t{n}", "content": "x" * 1000} for n in range(2000)]
    (tmp_path / "todos.json").write_text(json.dumps(items))
    with monkeypatch.context() as patched:
        patched.setattr(SqliteDatabase, "_open", small)
        code, document = call(capsys, "todo", "import", "todos.json")
    assert code == 2
    assert "full" in document["error"]
    assert contents(capsys) == ["stay"]


def test_a_document_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, "todo", "export", "kept.json")[0] == 0
    before = (tmp_path / "kept.json").read_text()

    def full(self: Path, text: str, **_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        code, document = call(capsys, "todo", "export", "kept.json")
    assert code == 1
    assert document["error"].startswith("kept.json: No space left on device; ")
    assert (tmp_path / "kept.json").read_text() == before


def test_forgetting_runs_asks_and_takes_only_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        for _ in range(2):
            runner(store, graph(task("a", Do()))).run()
    forget = ("history", "prune", "--keep", "1", "--older-than")
    code, document = call(capsys, *forget, "0")
    assert code == 2
    assert document["error"].startswith("This removes runs for good and nobody can be asked here")
    assert call(capsys, *forget, "nan", "--yes")[0] == 2
    assert len(call(capsys, *forget, "0", "--dry-run")[1]["runs"]) == 1
    assert len(call(capsys, "history")[1]["runs"]) == 2
    assert call(capsys, *forget, "0", "--yes")[1]["events"] > 0
    assert len(call(capsys, "history")[1]["runs"]) == 1


def test_a_second_writer_killed_in_its_transaction_blocks_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import sys, time; from orchestrator.store.store import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "with store.transaction() as tx:\n"
        "    tx.execute(\"UPDATE todos SET content = 'gone'\"); print('holding', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path}/state.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "holding\n"
        assert contents(capsys) == ["stay"]  # a reader sees what was committed, at once
        os.kill(writer.pid, signal.SIGKILL)
    assert call(capsys, "todo", "add", "next")[0] == 0
    assert contents(capsys) == ["stay", "next"]


def test_doctor_looks_at_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found() -> dict[str, Any]:
        return next(item for item in call(capsys, "doctor")[1]["checks"] if item["name"] == "store")

    path = tmp_path / "state.db"
    assert found()["ok"]
    data = path.read_bytes()
    path.write_bytes(data[:-4096] + b"\xa5" * 4096)
    assert not found()["ok"]
    assert "corrupt" in found()["detail"]
    path.unlink()
    assert found()["ok"], "a store that is not made yet is no finding"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_no_dash_ends_no_command(tmp_path: Path, encoding: str) -> None:
    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        store.todos.merge([NewTodo("a", "naïve – \U0001f600", Priority.LOW, "pending")], "me")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for more in ((), ("--json",)):
        command = [sys.executable, "-m", "orchestrator", "todo", "list", *more]
        done = subprocess.run(command, capture_output=True, env=environment, check=True)
        text = done.stdout.decode(encoding)
        assert "\\u2013" in text
        if more:
            assert json.loads(text)["todos"][-1]["content"] == "naïve – \U0001f600"
