"""The plain twin: the same information as lines, the run's exit code, nothing that drives a terminal."""

from __future__ import annotations

import subprocess
import sys
import threading

from orchestrator.graph.model import State
from orchestrator.store.records import RunState
from orchestrator.tui.plain import follow_plain
from tests.tui.fixtures import RUN_ID, Stage


def test_everything_the_views_show_is_there(demo: Stage) -> None:
    demo.script.fail("bench-budgets", "the server answered 500")
    demo.script.end(RunState.FAILED, 1, "the server answered 500")
    lines: list[str] = []
    assert follow_plain(demo.url, RUN_ID, lines.append, demo.clock) == 1
    text = "\n".join(lines)
    for wanted in (
        "deploy-ddtree on pro6000", "FAILED 49.6 s", "11 of 16 tasks done, ✗ 1 failed", "verdict inconclusive so far",
        "phase: preflight; done: 2; tasks: 2; state: ✓ completed", "reach-host: completed; Reach the host over SSH",
        "checked: looked again at reach-host from the outside", "waits for: bench-budgets (✗ failed)",
        "serves: DFLASH, no tree", "ARMED: restores found-3fa9c1 in 4:10", "name: NVIDIA RTX PRO 6000; memory: 59.6/95.6 GiB",
        "release: found-3fa9c1; algorithm: DFLASH; proof: known good", "sglang.service: drop-in 20-limits.conf was added",
        "B: 32; T: 33; ratio: 1.110; 95 % interval: 1.097–1.137; pairs: 7", "arm: tree; B: 64; pair: 3; why: repetition-loop",
        "SGLang DDTree roadmap: pro6000", "bench-budgets: pair 7 of 12: budget 32", "r20260101-220000-1a2b",
        "priority: high; status: in progress; owner: ada@workbench; to-do: Ask who owns the drop-in 20-limits.conf",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_follows_until_the_run_ends(demo: Stage) -> None:
    lines: list[str] = []
    began = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        began.set()

    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(follow_plain(demo.url, RUN_ID, say, demo.clock)))
    follower.start()
    assert began.wait(120)
    demo.script.log("bench-budgets", "pair 8 of 12")
    demo.script.finish("bench-budgets")
    for task in list(demo.script.tasks.values()):
        if task.state is State.PENDING:
            demo.script.change(task.key, State.SKIPPED, reason="measured: keep linear")
    demo.script.end(RunState.COMPLETED, 9, "measured: keep linear")
    follower.join(120)
    assert codes == [9]
    assert "03:04:55  bench-budgets: pair 8 of 12" in lines
    assert any("completed: looked again at bench-budgets" in line for line in lines)
    assert lines[-1] == "measured: keep linear"


def test_without_a_terminal_the_command_prints_lines_and_no_escape(demo: Stage) -> None:
    demo.script.log("bench-budgets", "\x1b[31mred\x1b[0m")
    demo.script.end(RunState.COMPLETED, 9, "keep \x1b[2Jlinear")
    command = [sys.executable, "-m", "orchestrator", "tui", RUN_ID, "--hosts", str(demo.hosts_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 9, done.stderr
    assert "deploy-ddtree on pro6000" in done.stdout
    assert "\x1b" not in done.stdout
    assert "keep \\u001b[2Jlinear" in done.stdout
