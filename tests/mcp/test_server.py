"""A real client of the official SDK talks to `orchestrate mcp` over stdio."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import anyio

from orchestrator.graph.model import State
from orchestrator.mcp.server import TOOLS
from orchestrator.store.store import open_store
from tests.mcp.conftest import SECRET, Place
from tests.tui.demosite import ROOT


async def test_tools_say_what_they_take_and_which_ones_change_a_host(place: Place) -> None:
    async with place.agent() as agent:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
    assert set(tools) == set(TOOLS)
    assert {"plan", "run", "status", "explain", "logs", "todo", "rollback", "releases", "inspect", "note"} <= set(tools)
    assert tools["run"].input_schema["required"] == ["plan_id"]
    assert tools["rollback"].input_schema["required"] == ["plan_id"]
    assert {name for name, tool in tools.items() if tool.annotations.destructive_hint} == {"run", "rollback"}
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())


async def test_a_plan_is_shown_run_and_followed(place: Place) -> None:
    async with place.agent() as agent:
        plan = await agent.call("plan", graph="demo", settings=place.settings)
        assert (plan["tasks"][0]["key"], plan["tasks"][0]["state"]) == ("step-one", "run")
        assert plan["changes_host"]
        assert list(place.files.iterdir()) == []

        started = await agent.call("run", plan_id=plan["plan_id"])
        found = await agent.call("status", run_id=started["run_id"], wait_s=60)
        assert (found["run"]["state"], found["run"]["exit_code"], found["working"]) == ("completed", 0, False)
        assert [task["state"] for task in found["tasks"]] == ["completed"] * 3
        assert found["tasks"][0]["evidence"]["output"] == "step-one"
        assert sorted(path.name for path in place.files.iterdir()) == ["step-one", "step-three", "step-two"]

        first = await agent.call("logs", run_id=started["run_id"], after=0, limit=5)
        rest = await agent.call("logs", run_id=started["run_id"], after=first["last"], limit=1000)
        assert first["events"][0]["kind"] == "run.created"
        assert "run.finished" in [event["kind"] for event in rest["events"]]
        assert first["events"][-1]["seq"] < rest["events"][0]["seq"]

        why = await agent.call("explain", task="step-two")
        assert (why["verdict"], why["run_id"]) == ("done", started["run_id"])


async def test_a_stale_plan_is_refused_and_nothing_is_run(place: Place) -> None:
    async with place.agent() as agent:
        plan_id = await agent.planned()
        (place.files / "step-two").write_text("somebody else was here")
        sentence = await agent.refused("run", 7, plan_id=plan_id)
        assert "the plan no longer fits: task step-two" in sentence
        assert not (place.files / "step-one").exists()
        assert "There is no run yet" in await agent.refused("status", 2)


async def test_nothing_changes_a_host_without_a_plan_that_this_server_made(place: Place) -> None:
    async with place.agent() as agent:
        assert "plan_id" in await agent.refused("run", 2)
        assert "made no plan p123456789abc" in await agent.refused("run", 2, plan_id="p123456789abc")
        plan_id = await agent.planned()
        assert "is for demo; call plan with graph rollback" in await agent.refused("rollback", 2, plan_id=plan_id)
    async with place.agent() as other:
        assert f"made no plan {plan_id}" in await other.refused("run", 2, plan_id=plan_id)
    assert list(place.files.iterdir()) == []


async def test_wrong_calls_are_one_sentence_each(place: Place) -> None:
    async with place.agent() as agent:
        assert await agent.refused("plan", 2, graph="demo", hots="files") == (
            "plan: hots: is not known; it takes graph, host, settings, reason."
        )
        assert "status: wait_s: " in await agent.refused("status", 2, wait_s="long")
        assert "There is no tool deploy; there are plan, run" in await agent.refused("deploy", 2)
        assert "there is no graph deploi" in await agent.refused("plan", 2, graph="deploi")
        assert "There is no host 'x'" in await agent.refused("plan", 2, graph="demo", host="x")
        assert "there is no run r1" in await agent.refused("status", 2, run_id="r1")
        assert "looks like a secret" in await agent.refused(
            "plan", 2, graph="demo", settings={"key": "hf_" + "a1b2" * 8}
        )
        assert "files" in await agent.refused("releases", 3, host="files")
        assert "files" in await agent.refused("plan", 3, graph="rollback", host="files")
        assert (await agent.call("status", host="files"))["exit_code"] == 3


async def test_a_failed_run_is_rolled_back_and_resumed_with_a_new_plan(place: Place) -> None:
    (place.files / "step-two.fail").touch()
    async with place.agent() as agent:
        run_id = (await agent.call("run", plan_id=await agent.planned()))["run_id"]
        failed = await agent.call("status", run_id=run_id, wait_s=60)
        assert (failed["run"]["exit_code"], failed["run"]["state"]) == (4, "rolled_back")
        assert not (place.files / "step-one").exists()

        (place.files / "step-two.fail").unlink()
        other = await agent.planned(host="other")
        assert "plan what is to be resumed" in await agent.refused("run", 2, plan_id=other, resume=run_id)
        resumed = await agent.call("run", plan_id=await agent.planned(), resume=run_id)
        assert resumed["run_id"] == run_id
        found = await agent.call("status", run_id=run_id, wait_s=60)
        assert found["run"]["state"] == "completed"


async def in_progress(place: Place, run_id: str, task: str) -> None:
    with open_store(place.store_url, read_only=True) as store, anyio.fail_after(60):
        while store.tasks.states(run_id)[task] is not State.IN_PROGRESS:
            await anyio.sleep(0.05)


async def test_a_run_survives_its_server_and_another_one_cancels_it(place: Place) -> None:
    hold = place.files / "step-two.hold"
    hold.touch()
    async with place.agent() as agent:
        run_id = (await agent.call("run", plan_id=await agent.planned()))["run_id"]
        await in_progress(place, run_id, "step-two")  # from here on a plan stays true while it is held
        held = await agent.refused("run", 6, plan_id=await agent.planned())
        assert run_id in held
    async with place.agent() as other:
        assert (await other.call("status", run_id=run_id))["working"]
        assert (await other.call("cancel", run_id=run_id, reason="enough"))["run_id"] == run_id
        found = await other.call("status", run_id=run_id, wait_s=60)
        assert (found["run"]["state"], found["run"]["exit_code"]) == ("cancelled", 130)


async def test_a_killed_run_is_not_taken_for_a_working_one(place: Place) -> None:
    (place.files / "step-two.hold").touch()
    async with place.agent() as agent:
        run_id = (await agent.call("run", plan_id=await agent.planned()))["run_id"]
        with open_store(place.store_url, read_only=True) as store:
            worker = json.loads(store.runs.get(run_id).process)["pid"]
        os.kill(worker, signal.SIGKILL)
        found = await agent.call("status", run_id=run_id, wait_s=60)
        assert (found["run"]["state"], found["working"]) == ("running", False)


async def test_todos_and_notes(place: Place) -> None:
    async with place.agent() as agent:
        first = (await agent.call("todo", action="add", content="Ask for a window", priority="high"))["todos"][0]
        second = (await agent.call("todo", action="add", content="Deploy", depends_on=[first["id"]]))["todos"][0]
        assert [item["id"] for item in (await agent.call("todo", action="ready"))["todos"]] == [first["id"]]
        claimed = (await agent.call("todo", action="next", owner="agent-7"))["todos"][0]
        assert (claimed["id"], claimed["owner"], claimed["status"]) == (first["id"], "agent-7", "in_progress")
        assert "agent-7" in await agent.refused("todo", 6, action="claim", id=first["id"], owner="agent-8")
        assert "needs status" in await agent.refused("todo", 2, action="set", id=first["id"])
        await agent.call("todo", action="set", id=first["id"], status="completed", owner="agent-7")
        assert (await agent.call("todo", action="claim", id=second["id"]))["todos"][0]["status"] == "in_progress"

        run_id = (await agent.call("run", plan_id=await agent.planned()))["run_id"]
        await agent.call("status", run_id=run_id, wait_s=60)
        bound = f"{run_id}:step-one"
        assert bound in [item["id"] for item in (await agent.call("todo"))["todos"]]
        assert "by hand" in await agent.refused("todo", 2, action="set", id=bound, status="cancelled")

        kept = await agent.call("note", kind="risk", text="The disk is old", task="step-one", author="agent-7")
        assert (kept["author"], kept["task"]) == ("agent-7", "step-one")
    with open_store(place.store_url, read_only=True) as store:
        assert [(note.kind, note.text) for note in store.notes.list()] == [("risk", "The disk is old")]


async def test_secrets_of_the_inventory_never_leave(place: Place) -> None:
    async with place.agent() as agent:
        await agent.call("plan", graph="demo", settings=place.settings)
        shown = await agent.call("todo", action="add", content=f"use {SECRET} and sk-{'x' * 24}")
        assert shown["todos"][0]["content"] == "use [secret] and [secret]"


def test_stdout_carries_the_protocol_only_even_when_the_input_is_nonsense(place: Place) -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    wrong = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "plan", "arguments": {}}}
    lines = [json.dumps(hello), json.dumps(ready), "{nonsense", json.dumps(wrong)]
    parameters = place.parameters("--debug")
    with subprocess.Popen(
        [parameters.command, *parameters.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **(parameters.env or {})}, cwd=place.folder,
    ) as server:  # fmt: skip
        assert server.stdin
        assert server.stdout
        server.stdin.write("".join(f"{line}\n" for line in lines))
        server.stdin.flush()
        answers = []
        while not any(answer.get("id") == 2 for answer in answers):
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        assert server.stdout.read() == ""
    assert server.returncode == 0
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert answers[-1]["result"]["structuredContent"]["exit_code"] == 2


def test_a_wrong_inventory_is_an_error_at_the_start(place: Place) -> None:
    place.hosts_file.write_text("hosts: [", encoding="utf-8")
    parameters = place.parameters()
    done = subprocess.run(
        [parameters.command, *parameters.args], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env={**os.environ, **(parameters.env or {})}, cwd=place.folder, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert "hosts.yaml:1" in done.stderr


def test_without_the_sdk_only_this_command_is_missing(place: Place) -> None:
    program = (
        "import sys; sys.modules['mcp'] = None\n"
        "from orchestrator.cli.main import run\n"
        f"assert run(['hosts', 'list', '--hosts', {str(place.hosts_file)!r}]) == 0\n"
        f"sys.exit(run(['mcp', '--hosts', {str(place.hosts_file)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120, cwd=place.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs the package mcp" in done.stderr
