"""The lines that a person watches: every result stands below the task that it belongs to."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from orchestrator.cli.progress import RunProgress
from orchestrator.store.records import Event

TASKS = {"look": "Inspect the host", "vllm": "Research vLLM", "cutover": "Cut over"}


def lines(*events: tuple[str, str, dict[str, Any]]) -> list[str]:
    out = io.StringIO()
    with RunProgress(TASKS, Console(file=out, width=80)) as progress:
        for seq, (kind, key, data) in enumerate(events, 1):
            progress(Event(seq=seq, run_id="r", task_key=key, kind=kind, data=data, at=float(seq), pid=1))
    return out.getvalue().splitlines()


def test_results_of_parallel_tasks_are_told_apart() -> None:
    seen = lines(
        ("task.claimed", "look", {}),
        ("task.claimed", "vllm", {}),
        ("task.completed", "vllm", {"output": "not installed"}),
        ("task.completed", "look", {"output": "sglang 0.5.20"}),
    )
    heads = [index for index, line in enumerate(seen) if line == " 1/3  Inspect the host"]
    assert seen[2].split() == ["ok", "0.0", "s", "not", "installed"]
    assert heads == [0, 3]
    assert seen[4].endswith("sglang 0.5.20")


def test_a_task_that_is_skipped_without_a_start_is_named() -> None:
    assert lines(("task.skipped", "cutover", {"reason": "no gain"})) == [" 3/3  Cut over", "      skipped   no gain"]
