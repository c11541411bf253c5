"""`orchestrate run`: chosen ids, and the live view on a run that is a process of its own."""

from __future__ import annotations

import errno
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.cli.detached import start_run, wait_begun
from orchestrator.errors import UsageError
from orchestrator.store.process import ProcessName
from orchestrator.store.records import RunRecord
from orchestrator.store.store import Store, open_store
from tests.tui.demosite import install_demo_graph

PATIENCE_S = 120.0  # a busy machine; nothing waits so long that is not broken
HOSTS = """\
hosts:
  files: {address: 127.0.0.1, port: 9, user: ada, model: {target: /m, draft: /d}}
  other: {address: 127.0.0.1, port: 9, user: ada, model: {target: /m, draft: /d}}
"""


@dataclass
class Site:
    """A folder with an inventory, whose demo graph writes files instead of changing a host."""

    folder: Path
    store: Store

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def command(self, *more: str) -> list[str]:
        return [
            sys.executable, "-m", "orchestrator", "run", "demo", "--yes", "--set", f"folder={self.files}",
            "--hosts", str(self.folder / "hosts.yaml"), *more,
        ]  # fmt: skip

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*more), capture_output=True, text=True, check=False, cwd=self.folder)

    def found(self, run_id: str) -> RunRecord | None:
        try:
            return self.store.runs.get(run_id)
        except UsageError:
            return None


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    install_demo_graph(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "files").mkdir()
    (tmp_path / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    with open_store(f"sqlite:///{tmp_path / 'state.db'}") as store:
        yield Site(tmp_path, store)


@dataclass
class Terminal:
    """A program on a terminal of its own, whose screen is read all the time."""

    command: list[str]
    cwd: Path
    shown: bytes = b""
    process: subprocess.Popen[bytes] = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end, other = pty.openpty()
        self.process = subprocess.Popen(
            self.command, stdin=other, stdout=other, stderr=other, close_fds=True, cwd=self.cwd, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        )  # fmt: skip
        os.close(other)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.shown[-2000:]
            self.read()

    def read(self) -> None:
        if select.select([self.end], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self.end, 65536)
            except OSError as error:  # EIO: the program has closed its terminal
                if error.errno != errno.EIO:
                    raise

    def close_view(self) -> int:
        """Presses q until the program ends: a key that comes before the screen listens is lost."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown[-2000:]
            os.write(self.end, b"q")
            for _ in range(10):
                self.read()
        return self.process.returncode


def test_a_run_gets_the_id_that_was_chosen_once(site: Site) -> None:
    done = site.run("--run-id", "ticket-17", "--json")
    assert (done.returncode, json.loads(done.stdout)["run_id"]) == (0, "ticket-17")
    again = site.run("--run-id", "ticket-17", "--json")
    assert again.returncode == 2
    assert "there is such a run already" in json.loads(again.stdout)["error"]
    assert site.run("--run-id", "ticket-1", "--json").returncode == 0


def test_an_id_of_one_s_own_begins_a_run_on_several_hosts_only_once(site: Site) -> None:
    both = ("--host", "files", "--host", "other", "--run-id")
    assert site.run(*both, "ticket-18", "--json").returncode == 0
    for again in (("--host", "files", "--run-id"), both):
        done = site.run(*again, "ticket-18", "--json")
        assert done.returncode == 2
        assert "there is such a run already; `--resume ticket-18` goes on" in json.loads(done.stdout)["error"]
    assert site.run(*both, "../ticket", "--json").returncode == 2
    assert [run.id for run in site.store.runs.list()] == ["ticket-18.other", "ticket-18.files"]


def test_a_resume_needs_neither_host_nor_settings_again(site: Site) -> None:
    (site.files / "step-two.fail").touch()
    assert site.run("--run-id", "r1", "--host", "other", "--set", "steps=2").returncode == 4
    (site.files / "step-two.fail").unlink()

    def resumed(graph: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", "run", graph, "--resume", "r1", "--yes", *more]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site.folder)

    for done in (resumed("demo-back"), resumed("demo", "--host", "files")):
        assert done.returncode == 2
        assert "The run r1 is one of demo on other: `orchestrate run demo --resume r1` goes on with it." in done.stderr
    assert resumed("demo").returncode == 0
    assert sorted(path.name for path in site.files.iterdir()) == ["step-one", "step-two"]


SECRET = "sk-0123456789abcdefghij"


@pytest.mark.parametrize("hosts", [("--host", "files"), ("--host", "files", "--host", "other")])
def test_a_setting_that_held_a_secret_has_to_be_given_again(site: Site, hosts: tuple[str, ...]) -> None:
    (site.files / "step-two.fail").touch()
    assert site.run(*hosts, "--run-id", "r1", "--set", f"note={SECRET}").returncode == 4
    (site.files / "step-two.fail").unlink()
    command = [sys.executable, "-m", "orchestrator", "run", "demo", "--resume", "r1", "--yes"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, cwd=site.folder)
    assert refused.returncode == 2
    assert "The run r1 was begun with a secret in note" in refused.stderr
    assert "(--set note=VALUE)" in refused.stderr
    again = [*command, "--set", f"note={SECRET}"]
    assert subprocess.run(again, capture_output=True, check=False, cwd=site.folder).returncode == 0
    assert all(SECRET not in str(run.settings) for run in site.store.runs.list())


def test_resuming_a_run_that_is_worked_on_leaves_the_files_of_that_process_alone(site: Site) -> None:
    (site.files / "step-one.hold").touch()
    wish = ("demo", "--host", "files", "--set", f"folder={site.files}")
    url = f"sqlite:///{site.folder / 'state.db'}"
    first = start_run(site.folder / "hosts.yaml", url, "r1", wish, new=True)
    assert wait_begun(site.store, first, PATIENCE_S)
    second = start_run(site.folder / "hosts.yaml", url, "r1", wish, new=False)
    second.process.wait(PATIENCE_S)
    assert second.exit_code == 6
    assert "is locked by" in str(second.refusal())
    assert "is locked by" not in first.log.read_text()
    (site.files / "step-one.hold").unlink()
    first.process.wait(PATIENCE_S)
    assert (first.exit_code, first.document()["run_id"]) == (0, "r1")
    third = start_run(site.folder / "hosts.yaml", url, "r1", wish, new=False)
    third.process.wait(PATIENCE_S)
    assert third.output == first.output  # nobody writes it any more


def test_the_view_closed_after_the_end_gives_the_exit_code_of_the_run(site: Site) -> None:
    (site.files / "step-two.fail").touch()
    terminal = Terminal(site.command("--tui", "--run-id", "shown"), site.folder)
    terminal.until(lambda: (run := site.found("shown")) and run.exit_code is not None)
    terminal.until(lambda: b"\x1b[?1049h" in terminal.shown)  # the screen of the view is up
    assert terminal.close_view() == 4
    assert b"rolled back and verified" in terminal.shown
    assert (site.folder / ".run" / "shown.log").read_text().count("run shown: 3 tasks") == 1


def test_the_view_closed_early_leaves_the_run_alone(site: Site) -> None:
    hold = site.files / "step-two.hold"
    hold.touch()
    terminal = Terminal(site.command("--tui", "--run-id", "shown"), site.folder)
    terminal.until(lambda: b"\x1b[?1049h" in terminal.shown)
    assert terminal.close_view() == 0
    assert b"shown goes on; `orchestrate tui shown` shows it again." in terminal.shown
    hold.unlink()
    terminal.until(lambda: (run := site.found("shown")) and run.exit_code == 0)
    assert (site.files / "step-three").exists()


def killed_at_step_two(site: Site, terminal: Terminal) -> None:
    terminal.until(lambda: (run := site.found("shown")) and site.store.tasks.get(run.id, "step-two").began)
    process = ProcessName.from_text(site.store.runs.get("shown").process)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    terminal.until(lambda: not process.alive())


def test_the_view_closed_on_a_run_whose_process_is_gone_says_how_to_go_on(site: Site) -> None:
    (site.files / "step-two.hold").touch()
    terminal = Terminal(site.command("--tui", "--run-id", "shown"), site.folder)
    killed_at_step_two(site, terminal)
    assert terminal.close_view() == 130
    assert b"The process of run shown is gone; `orchestrate run demo --resume shown` goes on." in terminal.shown


def test_the_view_tells_how_the_run_ended_that_another_process_resumed(site: Site) -> None:
    hold = site.files / "step-two.hold"
    hold.touch()
    terminal = Terminal(site.command("--tui", "--run-id", "shown"), site.folder)
    killed_at_step_two(site, terminal)
    hold.unlink()
    assert site.run("--resume", "shown").returncode == 0
    assert terminal.close_view() == 0
    assert b"shown: completed" in terminal.shown


def test_without_a_terminal_the_view_is_lines(site: Site) -> None:
    done = site.run("--tui", "--run-id", "shown")
    assert done.returncode == 0, done.stderr
    assert "step-three" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_run_that_does_not_begin_says_why(site: Site) -> None:
    plan = site.folder / "plan.json"
    planned = [*site.command(), "--out", str(plan)]
    planned[3] = "plan"
    planned.remove("--yes")
    subprocess.run(planned, check=True, capture_output=True)
    (site.files / "step-one").write_text("somebody else was here")
    done = site.run("--tui", "--plan", "plan.json")
    assert done.returncode == 7
    assert "the plan no longer fits: task step-one" in done.stderr
    assert site.store.runs.list() == []
