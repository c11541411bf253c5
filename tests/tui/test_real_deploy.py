"""A real deployment through a real terminal: started, watched, scrolled, cancelled, resumed and rolled back by keys.

Minutes, so it is a group of its own: `make screen-test`. Every fact that the screen claims is looked up at the service.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator.store.process import ProcessName
from orchestrator.store.records import RunRecord, RunState
from orchestrator.store.store import open_store
from tests.e2e.conftest import QUICK, Story, story  # noqa: F401  the host of the end-to-end tests
from tests.tui.terminal import Terminal, wait

ADOPT = ("--set", "decide=adopt", "--reason", "the test adopts at 15 nodes", "--set", "nodes=15")
LONG_S = 600.0
pytestmark = pytest.mark.skipif("ORCHESTRATE_ENGINE_BASE" not in os.environ, reason="it runs by `make screen-test`")


@pytest.fixture
def terminal(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:  # noqa: F811
    command = story.command("run", "deploy-ddtree", "--yes", "--tui", *QUICK, *ADOPT)
    made = Terminal(tmp_path_factory.mktemp("terminal"), command, (110, 24))
    yield made
    made.close()
    for graph in ("deploy-ddtree", "rollback"):
        stop(newest(story, graph))


def stop(run: RunRecord | None) -> None:
    """A run outlives its terminal: one that a failed test left behind would go on for minutes."""
    process = ProcessName.from_text(run.process) if run is not None and run.state.active else None
    if process is not None and process.alive():
        os.kill(process.pid, signal.SIGKILL)


def newest(story: Story, graph: str) -> RunRecord | None:  # noqa: F811
    with open_store(f"sqlite:///{story.home / 'state.db'}", read_only=True) as store:
        return store.runs.latest("local", graph)


def ended(story: Story, terminal: Terminal, graph: str, state: RunState) -> RunRecord:  # noqa: F811
    """The newest run of the graph, once it is over; it must have ended as the test wants."""

    def over() -> bool:
        run = newest(story, graph)
        return run is not None and not run.state.active

    wait(over, lambda: f"{graph} goes on; on screen:\n{terminal.screen}", LONG_S)
    run = newest(story, graph)
    assert run is not None
    assert run.state is state, f"{run.state}: {run.reason}; on screen:\n{terminal.screen}"
    return run


def tree(terminal: Terminal) -> str:
    """The rows of tasks, without the header and what stands beside them."""
    return "\n".join(line.partition("▏")[0] for line in terminal.screen.splitlines()[3:])


def test_a_deployment_is_driven_by_keys_from_start_to_rollback(story: Story, terminal: Terminal) -> None:  # noqa: F811
    terminal.shows("deploy-ddtree on local", LONG_S)
    run = newest(story, "deploy-ddtree")
    assert run is not None
    terminal.shows(run.id)

    # Watched: the baseline's smoke checks come in while they are made.
    terminal.shows("passed      liveness", LONG_S)
    wait(lambda: "✓ record-linear" in terminal.screen, lambda: terminal.screen, LONG_S)

    # Scrolled: found by search, its log stands still from the top on, although the run moves on to other tasks.
    terminal.keys("/", "record-linear", "Enter")
    wait(lambda: "▶" not in tree(terminal), lambda: terminal.screen)
    terminal.keys("Enter")
    terminal.shows("■ completed: linear service")
    terminal.keys("g")
    terminal.shows("paused, End follows")
    terminal.shows("passed      liveness")
    terminal.keys("End")
    terminal.shows("following")
    terminal.keys("Escape")
    terminal.shows("inspect-model")
    terminal.keys("Tab", "x")

    # Cancelled in the middle of the comparison, when the release is built.
    wait(lambda: "▶ compare" in terminal.screen, lambda: terminal.screen, LONG_S)
    terminal.keys("C")
    terminal.shows("Nothing is undone")
    terminal.keys("Enter")
    cancelled = ended(story, terminal, "deploy-ddtree", RunState.CANCELLED)
    assert cancelled.id == run.id
    terminal.shows("CANCELLED")
    assert story.server_info()["speculative_algorithm"] == "DFLASH"

    # Resumed: the same run, and the tree goes live.
    terminal.keys("r")
    terminal.shows("Resume the run")
    terminal.keys("Tab", "Enter")
    wait(lambda: (found := newest(story, "deploy-ddtree")) and found.state.active, lambda: terminal.screen)
    assert ended(story, terminal, "deploy-ddtree", RunState.COMPLETED).id == run.id
    terminal.shows("COMPLETED")
    terminal.shows("(DDTREE)")
    assert story.server_info()["speculative_algorithm"] == "DDTREE"

    # Rolled back, and only by the host's name.
    terminal.keys("B")
    terminal.shows("type local to confirm")
    terminal.keys("Tab", "loca", "Enter")
    terminal.shows(" loca ")
    assert newest(story, "rollback") is None
    terminal.keys("l", "Enter")
    terminal.shows("rollback on local", LONG_S)
    ended(story, terminal, "rollback", RunState.COMPLETED)
    terminal.shows("COMPLETED")
    terminal.shows("(DFLASH)")
    assert story.server_info()["speculative_algorithm"] == "DFLASH"
    terminal.keys("q")
    terminal.shows("left with 0")
