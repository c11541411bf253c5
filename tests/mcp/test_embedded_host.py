"""What an agent does with a host: look at it, see its releases, and roll it back with a plan that it was shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.transport.embedded import remove_embedded
from tests.mcp.conftest import Place
from tests.mcp.embedded import HOST, TREE, WIDTH, make_host


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    try:
        make_host(tmp_path)
        yield Place(tmp_path)
    finally:
        remove_embedded(tmp_path, HOST)


async def test_a_host_is_looked_at_and_rolled_back_by_plan(site: Place) -> None:
    async with site.agent() as agent:
        seen = await agent.call("inspect", host=HOST)
        assert seen["ok"], seen["error"]
        assert (seen["sglang"]["version"], seen["sglang"]["dflash"]) == ("0.5.20", "linear"), seen
        assert seen["model"]["compat"]["problems"] == []

        before = (await agent.call("releases", host=HOST))["releases"]
        (linear,) = [row["id"] for row in before if row["id"] != TREE]
        assert [row["id"] for row in before if row["current"]] == [TREE]
        assert [row["id"] for row in before if row["known_good"]] == [linear]
        now = await agent.call("status", host=HOST)
        assert (now["algorithm"], now["nodes"], now["release"], now["drift"]) == ("DDTREE", WIDTH - 1, TREE, [])
        assert now["accept_length"] == 1.938  # 32 tokens, the first one without a verify step, in 16 steps

        assert "plan_id" in await agent.refused("rollback", 2, host=HOST)
        assert "never proven" in await agent.refused("plan", 2, graph="rollback", host=HOST, settings={"to": TREE})
        plan = await agent.call("plan", graph="rollback", host=HOST)
        assert plan["changes_host"]
        assert f"restarted with {linear}" in plan["tasks"][0]["changes"][0]["detail"]
        assert "give it to the tool rollback" in await agent.refused("run", 2, plan_id=plan["plan_id"])
        assert (await agent.call("status", host=HOST))["pid"] == now["pid"]

        begun = await agent.call("rollback", plan_id=plan["plan_id"])
        done = await agent.call("status", run_id=begun["run_id"], wait_s=120)
        assert (done["run"]["exit_code"], done["tasks"][0]["state"]) == (0, "completed"), done
        assert linear in done["tasks"][0]["evidence"]["output"]
        after = await agent.call("status", host=HOST)
        assert (after["algorithm"], after["release"], after["drift"]) == ("DFLASH", linear, [])
        assert after["pid"] != now["pid"]
        current = [row["id"] for row in (await agent.call("releases", host=HOST))["releases"] if row["current"]]
        assert current == [linear]
