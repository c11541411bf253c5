"""Carries out actions: shows what will happen, starts the command, says how it ended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from orchestrator.cli.detached import DetachedCommand
from orchestrator.errors import OrchestrateError
from orchestrator.tui.actions import ACTIONS, Answers, Proposal, Refusal, Scene
from orchestrator.tui.dialogs import ConfirmScreen
from orchestrator.tui.process import Program, how_it_ended, succeeded
from orchestrator.tui.words import one_line

if TYPE_CHECKING:
    from orchestrator.tui.app import OrchestrateApp

ERROR_S = 60.0  # the sentence of a command that failed stays so long, or until a question covers it


class CommandEnded(Message):
    """A command that the TUI started came to its end."""

    def __init__(self, ended: DetachedCommand) -> None:
        self.ended = ended
        super().__init__()


class Operator:
    """The one way from a key or the palette to a command of this program."""

    def __init__(self, app: OrchestrateApp, program: Program) -> None:
        self.app = app
        self.program = program
        self._graphs: tuple[str, ...] | None = None

    def scene(self) -> Scene:
        return Scene(self.app.reading, self.app.run_view.selected_task, self._graph_names(), self._host_names())

    def available(self) -> Iterator[tuple[str, str, str]]:
        """(name, key, title) of every action that is possible now."""
        scene = self.scene()
        for name, (key, title, offer) in ACTIONS.items():
            if isinstance(offer(scene), Proposal):
                yield name, key, title

    def propose(self, name: str) -> None:
        """Asks; or says why it is not possible now."""
        offer = ACTIONS[name][2](self.scene())
        if isinstance(offer, Refusal):
            self.app.say(f"Not now: {offer.sentence}.", "warning")
            return

        def answered(answers: dict[str, str] | None) -> None:
            if answers is not None:
                self.carry_out(offer, answers)

        shown = lambda answers: self.program.shown(offer.command(answers))  # noqa: E731
        self.app.push_screen(ConfirmScreen(offer, shown, self.app.look), answered)

    def carry_out(self, proposal: Proposal, answers: Answers) -> None:
        command = proposal.command(answers)
        if proposal.starts_run:
            self._await_run(command)
        self._start(command)

    def ask_plan(self) -> None:
        """Asks the host what the graph of the run shown would change; the answer fills the Plan page."""
        run = self.app.reading.run
        if run is None:
            return
        settings = [part for name, value in sorted(run.settings.items()) for part in ("--set", f"{name}={value}")]
        self.app.say(f"asking {run.host} what {run.graph} would change …")
        self._start(("plan", run.graph, "--host", run.host, *settings), quiet=True)

    def ended(self, ended: DetachedCommand) -> None:
        """Called in the screen's thread."""
        if ended.arguments[0] == "plan":
            self._planned(ended)
            return
        good = succeeded(ended)
        text = f"{self.program.shown(ended.arguments[:2])}: {how_it_ended(ended)}"
        self.app.say(text, "information" if good else "error", timeout=6 if good else ERROR_S)

    def _planned(self, ended: DetachedCommand) -> None:
        run = self.app.reading.run
        if run is None or (run.graph, run.host) != (ended.arguments[1], ended.arguments[3]):
            return  # another run is shown by now
        tasks = ended.document().get("tasks")
        if not isinstance(tasks, list):
            self.app.run_view.show_plan(None, how_it_ended(ended), self.app.clock())
            return
        plan = {
            str(task.get("key")): [change for change in task.get("changes") or () if isinstance(change, dict)]
            for task in tasks
            if isinstance(task, dict)
        }
        self.app.run_view.show_plan(plan, "", self.app.clock())

    def _start(self, command: tuple[str, ...], *, quiet: bool = False) -> None:
        try:
            pid = self.program.start(command, self._tell)
        except OSError as error:
            problem = f"{self.program.shown(command)} could not be started: {error}"
            if command[0] == "plan":
                self.app.run_view.show_plan(None, problem, self.app.clock())
            self.app.say(problem, "error")
            return
        if not quiet:
            self.app.say(f"started as process {pid}: {self.program.shown(command)}")

    def _tell(self, ended: DetachedCommand) -> None:
        """Called from the thread that waited for the command."""
        self.app.post_message(CommandEnded(ended))

    def _await_run(self, command: tuple[str, ...]) -> None:
        """The screen follows what was just started: the resumed run, or the new one as soon as it is in the store."""
        if "--resume" in command:
            return
        graph = command[1] if command[0] == "run" else command[0]
        self.app.feed.await_run(graph, command[command.index("--host") + 1], time.time())

    def _graph_names(self) -> tuple[str, ...]:
        if self._graphs is None:
            from orchestrator.graph.registry import graph_names

            self._graphs = tuple(graph_names())
        return self._graphs

    def _host_names(self) -> tuple[str, ...]:
        from orchestrator.hosts.load import load_inventory

        try:
            return tuple(load_inventory(self.program.hosts_file).hosts)
        except OrchestrateError as error:
            self.app.say(one_line(error), "error")
            return ()


def save_log(text: str, run_id: str | None, task_key: str | None, folder: Path) -> Path:
    """Writes a log beside the inventory, in `.run/`; OSError when that is not possible."""
    name = re.sub(r"[^\w.-]", "_", "-".join(part for part in (run_id, task_key, "log.txt") if part))
    path = folder / ".run" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
