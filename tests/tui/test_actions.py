"""What actions say before they do anything, and which commands they are."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from orchestrator.cli.main import cli
from orchestrator.graph.model import State
from orchestrator.store.records import RunState
from orchestrator.tui.actions import ACTIONS, Proposal, Refusal, Scene, still_missing
from orchestrator.tui.model import first_reading
from tests.tui.fixtures import HOST, RUN_ID, Stage

ANSWERS = {
    "graph": "deploy-ddtree",
    "host": HOST,
    "reason": "it hangs",
    "confirm": HOST,
    "to": "",
    "settings": "nodes=15",
}


def scene(demo: Stage, key: str | None = None) -> Scene:
    reading = first_reading(demo.store, RUN_ID)
    return Scene(reading, reading.tasks[key] if key else None, ("deploy-ddtree", "smoke"), (HOST, "local"))


def proposal(name: str, where: Scene) -> Proposal:
    offer = ACTIONS[name][2](where)
    assert isinstance(offer, Proposal), offer
    return offer


def refusal(name: str, where: Scene) -> str:
    offer = ACTIONS[name][2](where)
    assert isinstance(offer, Refusal), offer
    return offer.sentence


def end(demo: Stage) -> None:
    demo.script.fail("bench-budgets", "the server answered 500")
    demo.script.end(RunState.FAILED, 1, "the server answered 500")


def test_while_a_run_is_worked_on_only_cancel_and_new_runs_are_offered(demo: Stage) -> None:
    where = scene(demo, "bench-budgets")
    possible = {name for name, (_, _, offer) in ACTIONS.items() if isinstance(offer(where), Proposal)}
    assert possible == {"new_run", "cancel", "steal_lock"}
    for name in ("resume", "retry_task", "skip_task", "roll_back"):
        assert "is being worked on" in refusal(name, where)


def test_a_new_run_takes_settings_as_they_are_typed(demo: Stage) -> None:
    offer = proposal("new_run", scene(demo))
    assert offer.command(ANSWERS)[2:] == ("--host", HOST, "--set", "nodes=15", "--yes")
    typed = {**ANSWERS, "settings": "budgets=16,32 'reason=it is slow'"}
    assert offer.command(typed)[4:-1] == ("--set", "budgets=16,32", "--set", "reason=it is slow")
    assert offer.command({**ANSWERS, "settings": "reason='it is"})[4:-1] == ("--set", "reason='it", "--set", "is")
    assert offer.command({**ANSWERS, "settings": ""})[4:] == ("--yes",)


def test_cancel_says_what_stops_and_that_nothing_is_undone(demo: Stage) -> None:
    offer = proposal("cancel", scene(demo))
    assert "bench-budgets" in offer.effects[0]
    assert "Nothing is undone" in offer.effects[1]
    assert offer.command(ANSWERS) == ("cancel", RUN_ID, "--reason", "it hangs")


def test_resume_lists_what_is_left_and_what_changes_the_host(demo: Stage) -> None:
    end(demo)
    offer = proposal("resume", scene(demo))
    text = " ".join(offer.effects)
    assert "5 tasks are left: bench-budgets, arm-deadman, switch-service, disarm-deadman, write-roadmap." in text
    assert f"These change {HOST}: arm-deadman, switch-service, disarm-deadman." in text
    assert offer.command({}) == ("run", "deploy-ddtree", "--host", HOST, "--resume", RUN_ID, "--yes")


def test_a_run_whose_process_died_can_be_resumed_not_cancelled(demo: Stage) -> None:
    where = scene(demo)
    dead = replace(where, reading=replace(where.reading, process_gone=True))
    assert proposal("resume", dead).starts_run
    assert "process of this run is gone" in refusal("cancel", dead)


def test_retry_and_skip_name_the_task(demo: Stage) -> None:
    end(demo)
    where = scene(demo, "bench-budgets")
    retry, skip = proposal("retry_task", where), proposal("skip_task", where)
    assert "the server answered 500" in retry.effects[0]
    assert retry.command({})[-3:] == ("--only", "bench-budgets", "--yes")
    assert "arm-deadman, write-roadmap" in skip.effects[1]
    assert skip.command({})[-3:] == ("--skip", "bench-budgets", "--yes")
    again = proposal("retry_task", scene(demo, "reach-host"))
    assert again.command({})[-5:] == ("--only", "reach-host", "--force", "reach-host", "--yes")


def test_an_unconfirmed_task_is_never_skipped(demo: Stage) -> None:
    demo.script.change("bench-budgets", State.UNKNOWN, reason="the connection was lost")
    demo.script.end(RunState.INTERRUPTED, 130)
    assert "not confirmed" in refusal("skip_task", scene(demo, "bench-budgets"))


def test_rolling_back_needs_the_host_typed(demo: Stage) -> None:
    end(demo)
    offer = proposal("roll_back", scene(demo))
    assert "found-3fa9c1" in offer.effects[0]
    demo.script.fact("switch-service", "release", "ddtree-20260102-64", {"id": "ddtree-20260102-64", "state": "live",
                     "current": True, "known_good": True, "algorithm": "DDTREE"})  # fmt: skip
    assert "found-3fa9c1" in proposal("roll_back", scene(demo)).effects[0]  # the way back is to the linear service
    assert still_missing(offer.fields, {"confirm": "pro600"}) == f"type {HOST} to confirm"
    assert still_missing(offer.fields, {"confirm": HOST}) == ""
    assert offer.command(ANSWERS) == ("rollback", "--host", HOST, "--yes")
    assert offer.command({**ANSWERS, "to": "r7"}) == ("rollback", "--host", HOST, "--to", "r7", "--yes")


def test_stealing_a_lock_needs_a_reason_and_the_host(demo: Stage) -> None:
    offer = proposal("steal_lock", scene(demo))
    assert "ada@workbench" in offer.effects[0]
    assert still_missing(offer.fields, {"confirm": HOST, "reason": " "}) == "fill in: reason (recorded)"
    assert offer.command(ANSWERS)[:6] == ("lock", "steal", "--host", HOST, "--reason", "it hangs")


@pytest.mark.parametrize("name", list(ACTIONS))
def test_every_action_is_a_command_line_that_the_program_accepts(demo: Stage, name: str) -> None:
    """Parsed by the real command line, without running it."""
    if name not in ("cancel", "steal_lock"):
        end(demo)
    command = list(proposal(name, scene(demo, "bench-budgets")).command(ANSWERS))
    context = click.Context(cli)
    found, parts = cli, command
    while isinstance(found, click.Group):
        name_, sub, parts = found.resolve_command(context, parts)
        assert sub is not None, f"{name_} is not a command"
        found = sub
    parsed = found.make_context(command[0], [*parts, "--json", "--hosts", str(demo.hosts_file)])
    assert parsed.params
