"""No request fails while three replicas behind SGLang's own router go to DDTREE and back, one by one, under load.

Real router, real CPU engines, the program's own commands. `ROLLING_REQUESTS` (default 1,000 each way) is how many
requests are sent at least while each of the two is under way; load goes on until both are true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.transport.embedded import embedded_folder, remove_embedded
from tests.e2e.conftest import Story
from tests.ports import free_ports
from tests.rolling import under_load

REPLICAS = 3
STREAMS = int(os.environ.get("ROLLING_STREAMS", "4"))
REQUESTS = int(os.environ.get("ROLLING_REQUESTS", "1000"))
QUICK = (
    "--set",
    "budgets=15",
    "--set",
    "nodes=15",
    "--set",
    "pairs=1",
    "--set",
    "max_tokens=24",
    "--skip",
    "benchmark",
)
ADOPT = ("--set", "decide=adopt", "--reason", "the rolling test adopts at 15 nodes", "--set", "confirm_s=600")
INVENTORY = """\
hosts:
  local:
    transport: embedded
    engine: sglang-cpu
    model: tiny-dense
    service: {{driver: process, port: {port}, start_timeout_s: 900}}
    replicas: {replicas}
    router: {{enabled: true, port: {router}, policy: round_robin, drain_timeout_s: 300}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("rolling")
    port = free_ports(12)
    (home / "hosts.yaml").write_text(INVENTORY.format(port=port, replicas=REPLICAS, router=port + 10))
    try:
        yield Story(home, port)
    finally:
        remove_embedded(home, "local")


def load(place: Story, name: str) -> AbstractContextManager[dict[str, Any]]:
    return under_load.load(f"http://127.0.0.1:{place.port + 10}", place.home / f"{name}.json", STREAMS, REQUESTS)


def algorithms(place: Story) -> list[str]:
    """What each replica says that it runs, asked past the router."""
    urls = [f"http://127.0.0.1:{place.port + number}/server_info" for number in range(REPLICAS)]
    return [httpx.get(url, timeout=60, trust_env=False).json()["speculative_algorithm"] for url in urls]


def routed(place: Story) -> set[str]:
    answer = httpx.get(f"http://127.0.0.1:{place.port + 10}/workers", timeout=20, trust_env=False).json()
    return {worker["url"].rsplit(":", 1)[1] for worker in answer["workers"] if worker["is_healthy"]}


def test_replicas_are_provisioned_behind_the_router(place: Story) -> None:
    started = place.orchestrate("hosts", "start", "local")
    assert started.code == 0, started.stderr[-3000:]
    assert algorithms(place) == ["DFLASH"] * REPLICAS
    assert routed(place) == {str(place.port + number) for number in range(REPLICAS)}


def test_a_release_is_built_and_proven_beside_them(place: Story) -> None:
    run = place.orchestrate("run", "deploy-ddtree", "--yes", *QUICK, *ADOPT, "--skip", "cutover", timeout_s=1800)
    assert run.code == 0, run.stderr[-3000:]
    assert algorithms(place) == ["DFLASH"] * REPLICAS


def test_the_plan_names_every_replica_and_the_router(place: Story) -> None:
    plan = place.orchestrate("plan", "deploy-ddtree", *QUICK[:-2], *ADOPT)
    assert plan.code == 0, plan.stderr[-3000:]
    (cutover,) = [task for task in plan.document["tasks"] if task["key"] == "cutover"]
    targets = [change["target"] for change in cutover["changes"]]
    for number in range(REPLICAS):
        assert f"sglang-router, sglang-{number}" in targets


def test_no_request_fails_while_the_replicas_are_deployed(place: Story) -> None:
    with load(place, "deploy") as found:
        run = place.orchestrate("run", "deploy-ddtree", "--yes", *QUICK, *ADOPT, timeout_s=1800)
        assert run.code == 0, run.stderr[-3000:]
    assert found["failed"] == []
    assert found["sent"] >= REQUESTS
    assert found["tokens"] == 32 * found["sent"]
    assert algorithms(place) == ["DDTREE"] * REPLICAS
    assert routed(place) == {str(place.port + number) for number in range(REPLICAS)}
    status = place.orchestrate("status", "--host", "local").document
    assert [one["routed"] for one in status["replicas"]] == [True] * REPLICAS
    assert len({one["release"] for one in status["replicas"]}) == REPLICAS  # one release for each replica's command
    clones = list((embedded_folder(place.home, "local") / "home" / "opt" / "ddtree" / "releases").glob("*/venv"))
    assert len(clones) == 1  # and one clone for all of them


def test_no_request_fails_while_they_are_rolled_back(place: Story) -> None:
    with load(place, "rollback") as found:
        back = place.orchestrate("rollback", "--yes", timeout_s=1800)
        assert back.code == 0, back.stderr[-3000:]
    assert found["failed"] == []
    assert found["sent"] >= REQUESTS
    assert found["tokens"] == 32 * found["sent"]
    assert algorithms(place) == ["DFLASH"] * REPLICAS
    assert routed(place) == {str(place.port + number) for number in range(REPLICAS)}


def test_nothing_is_left_when_the_host_is_cleaned(place: Story) -> None:
    cleaned = place.orchestrate("hosts", "clean", "local", "--yes")
    assert cleaned.code == 0, cleaned.stderr[-3000:]
    assert not Path(embedded_folder(place.home, "local")).exists()
